#include "sftrun/train/image_loading.h"

#include <algorithm>
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

images::ProcessedImage load_image(const data::SequenceMedia& image, const data::ImageInput& input) {
  if (!image.is_of_video()) return images::process(input.processor, decoded(image.media, image));
  std::vector<images::Image> frames;
  for (const data::Media& file : data::files_of(image)) frames.push_back(decoded(file, image));
  const images::VideoProcessor& processor = input.videos->processor;
  const images::ImagePlan plan =
      images::plan_frames(processor, image.width, image.height, image.frames.of_video);
  return images::process_frames(processor, plan, frames, resize_as_torchvision);
}

/// The key of the document that a row of the batch belongs to.
uint32_t document_of(const data::Batch& batch, int64_t row) {
  const auto after = std::upper_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), row);
  const auto document = static_cast<size_t>(after - batch.cu_seqlens.begin()) - 1;
  return static_cast<uint32_t>(batch.document_keys[document]);
}

}  // namespace

ImageLoader::ImageLoader(std::shared_ptr<const data::ImageInput> input, spec::VisionSpec vision,
                         int num_threads, Activity* activity)
    : input_(std::move(input)),
      vision_(std::move(vision)),
      num_threads_(num_threads),
      activity_(activity) {
  SFTRUN_CHECK(input_ != nullptr && !input_->refusal);
}

layers::TowerInput ImageLoader::load(const data::Batch& batch) {
  const kernels::WorkRange loading(activity_, Work::kDataLoader);
  std::vector<images::ProcessedImage> loaded(batch.images.size());
  data::parallel_for(
      std::ssize(batch.images), num_threads_,
      [&](int64_t i) {
        const auto at = static_cast<size_t>(i);
        loaded[at] = load_image(batch.images[at], *input_);
      },
      /*block=*/1);
  std::vector<model::ProcessedRows> processed;
  for (size_t i = 0; i < loaded.size(); ++i)
    processed.push_back({.plan = &loaded[i].plan,
                         .pixel_values = loaded[i].values(),
                         .document = document_of(batch, batch.images[i].begin)});
  return model::tower_input(input_->processor, vision_, processed);
}

}  // namespace sftrun::train
