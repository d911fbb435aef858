#include "sftrun/train/image_loading.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/images/decode.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/model/image_rows.h"

namespace sftrun::train {
namespace {

images::ProcessedImage load_image(const data::SequenceMedia& image,
                                  const images::ImageProcessor& processor) {
  const std::string name = data::name_of(image.media), file = data::read_media(image.media);
  const images::Image pixels = images::decode(std::as_bytes(std::span(file)), {}, name);
  if (pixels.width != image.width || pixels.height != image.height) {
    throw DataError(
        fmt::format("the image has {} x {} pixels; it had {} x {} when the data were tokenised",
                    pixels.width, pixels.height, image.width, image.height),
        name, "keep image files unchanged; to tokenise the data again: data.cache_dir=none");
  }
  return images::process(processor, pixels);
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
        loaded[at] = load_image(batch.images[at], input_->processor);
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
