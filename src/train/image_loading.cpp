#include "sftrun/train/image_loading.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "resize_frame.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/data/media_faults.h"
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
        fmt::format("the image has {} x {} pixels; it had {} x {} when the data were tokenized",
                    pixels.width, pixels.height, image.width, image.height),
        name,
        "keep image files unchanged during a run: a run that is started again tokenizes them "
        "again");
  }
  return pixels;
}

images::ImagePlan plan_of(const data::SequenceMedia& image, const data::ImageInput& input) {
  if (!image.is_of_video()) return images::plan_image(input.processor, image.width, image.height);
  return images::plan_frames(input.videos->processor, image.width, image.height,
                             image.frames.of_video);
}

/// @throws data::MediaError if the text does not have a place for each of the tower's features
void require_places(const data::Batch& batch, const data::SequenceMedia& image, int64_t features) {
  if (features == image.num_tokens) return;
  const DataError error(
      fmt::format("the vision tower makes {} of this {}, and its text has {} for them",
                  counted(features, "row"),
                  image.is_of_video() ? "pair of frames"
                                      : fmt::format("image ({} x {})", image.width, image.height),
                  counted(image.num_tokens, "place")),
      data::name_of(image.media),
      "copy preprocessor_config.json, processor_config.json and config.json from the same "
      "repository");
  throw data::MediaError(error, data::document_key_of(batch, image.begin), /*is_of_file=*/false);
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

layers::TowerInput ImageLoader::load(const data::Batch& batch, data::MediaFaults* faults) {
  const kernels::WorkRange loading(activity_, Work::kDataLoader);
  std::vector<images::ImagePlan> plans;
  for (const data::SequenceMedia& image : batch.images) {
    plans.push_back(plan_of(image, *input_));
    require_places(batch, image, plans.back().num_tokens);
  }
  std::vector<model::PlannedRows> rows;
  for (size_t i = 0; i < plans.size(); ++i)
    rows.push_back(
        {.plan = &plans[i],
         .document = static_cast<uint32_t>(data::document_key_of(batch, batch.images[i].begin))});
  layers::TowerInput input = model::tower_input(input_->processor, vision_, rows);
  std::vector<std::span<float>> values;
  float* next = input.patches.mutable_data_ptr<float>();
  const images::PatchForm form = model::patch_form(vision_);
  for (const images::ImagePlan& plan : plans) {
    values.emplace_back(next, static_cast<size_t>(plan.num_values(form)));
    next += plan.num_values(form);
  }
  data::parallel_for(
      std::ssize(batch.images), num_threads_,
      [&](int64_t i) {
        const auto at = static_cast<size_t>(i);
        const data::SequenceMedia& image = batch.images[at];
        std::unique_ptr<images::ProcessMemory> memory = memory_->take();
        const images::ProcessOptions options{.patches = form, .memory = memory.get()};
        const bool is_loaded = data::read_of_batch(batch, image, faults, [&] {
          load_image(image, *input_, plans[at], values[at], options);
        });
        if (!is_loaded) std::fill(values[at].begin(), values[at].end(), 0.0F);
        memory_->give(std::move(memory));
      },
      /*block=*/1);
  return input;
}

}  // namespace sftrun::train
