#include "sftrun/train/bin_cost.h"

#include <memory>

#include "sftrun/data/image_load.h"

namespace sftrun::train {

data::BinCost bin_cost(const plan::SequenceCost& cost, const images::ImageProcessor& processor,
                       int64_t patch_side) {
  const auto counter = std::make_shared<data::ImageCounter>(processor, patch_side);
  return [cost, counter](const data::ExampleStore& examples, const data::Bin& bin) {
    int64_t sum = 0;
    for (const int64_t index : bin) {
      const data::StoredExample& example = examples.stored(index);
      sum += cost.of_document(example.length, example.label_tokens);
      for (const data::StoredMedia& media : examples.stored_media(index)) {
        if (!media.is_image()) continue;
        const data::ImageLoad& image = counter->of(media.width, media.height);
        sum += image.tiles * cost.of_tile(image.longest_tile);
      }
    }
    return sum;
  };
}

}  // namespace sftrun::train
