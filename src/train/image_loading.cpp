#include "sftrun/train/image_loading.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "resize_frame.h"
#include "sftrun/core/error.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/images/decode.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/model/image_rows.h"

namespace sftrun::train {
namespace {

images::Image decoded(const data::Media& media, const data::SequenceMedia& image) {
  const std::string name = data::name_of(media), file = data::read_media(media);
  const images::Image pixels = images::decode(std::as_bytes(std::span(file)), {}, name);
  if (pixels.width != image.width || pixels.height != image.height) {
    throw DataError(
        fmt::format("the image has {} x {} pixels; it had {} x {} when the data were tokenised",
                    pixels.width, pixels.height, image.width, image.height),
        name, "keep image files unchanged; to tokenise the data again: data.cache_dir=none");
  }
  return pixels;
}

images::ImagePlan plan_of(const data::SequenceMedia& image, const data::ImageInput& input) {
  if (!image.is_of_video()) return images::plan_image(input.processor, image.width, image.height);
  return images::plan_frames(input.videos->processor, image.width, image.height,
                             image.frames.of_video);
}

/// @param values the patches of the image
void load_image(const data::SequenceMedia& image, const data::ImageInput& input,
                const images::ImagePlan& plan, std::span<float> values,
                images::ProcessOptions options) {
  if (!image.is_of_video())
    return images::process(input.processor, plan, decoded(image.media, image), values, options);
  std::vector<images::Image> frames;
  for (const data::Media& file : data::files_of(image)) frames.push_back(decoded(file, image));
  options.backend = images::Backend::kTorchvision;
  options.resize = resize_as_torchvision;
  images::process_frames(input.videos->processor, plan, frames, values, options);
}

/// The key of the document that a row of the batch belongs to.
uint32_t document_of(const data::Batch& batch, int64_t row) {
  const auto after = std::upper_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), row);
  const auto document = static_cast<size_t>(after - batch.cu_seqlens.begin()) - 1;
  return static_cast<uint32_t>(batch.document_keys[document]);
}

}  // namespace

/// Memory that no thread uses now.
class ImageLoader::Memory {
 public:
  std::unique_ptr<images::ProcessMemory> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<images::ProcessMemory>();
    std::unique_ptr<images::ProcessMemory> memory = std::move(idle_.back());
    idle_.pop_back();
    return memory;
  }
  void give(std::unique_ptr<images::ProcessMemory> memory) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(memory));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<images::ProcessMemory>> idle_;
};

ImageLoader::ImageLoader(std::shared_ptr<const data::ImageInput> input, spec::VisionSpec vision,
                         int num_threads, Activity* activity)
    : input_(std::move(input)),
      vision_(std::move(vision)),
      num_threads_(num_threads),
      activity_(activity),
      memory_(std::make_unique<Memory>()) {
  SFTRUN_CHECK(input_ != nullptr && !input_->refusal);
}

ImageLoader::~ImageLoader() = default;

layers::TowerInput ImageLoader::load(const data::Batch& batch) {
  const kernels::WorkRange loading(activity_, Work::kDataLoader);
  std::vector<images::ImagePlan> plans;
  for (const data::SequenceMedia& image : batch.images) plans.push_back(plan_of(image, *input_));
  std::vector<model::PlannedRows> rows;
  for (size_t i = 0; i < plans.size(); ++i)
    rows.push_back({.plan = &plans[i], .document = document_of(batch, batch.images[i].begin)});
  layers::TowerInput input = model::tower_input(input_->processor, vision_, rows);
  std::vector<std::span<float>> values;
  float* next = input.patches.mutable_data_ptr<float>();
  for (const images::ImagePlan& plan : plans) {
    values.emplace_back(next, static_cast<size_t>(plan.num_values()));
    next += plan.num_values();
  }
  data::parallel_for(
      std::ssize(batch.images), num_threads_,
      [&](int64_t i) {
        const auto at = static_cast<size_t>(i);
        std::unique_ptr<images::ProcessMemory> memory = memory_->take();
        load_image(batch.images[at], *input_, plans[at], values[at],
                   {.patches = model::patch_form(vision_), .memory = memory.get()});
        memory_->give(std::move(memory));
      },
      /*block=*/1);
  return input;
}

}  // namespace sftrun::train
