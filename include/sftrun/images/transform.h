#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "sftrun/images/image.h"

namespace sftrun::images {

/// Filters of `resize`, with Pillow's names.
enum class Filter { kNearest, kBox, kBilinear, kHamming, kBicubic, kLanczos };
std::string_view name_of(Filter filter);  ///< "bicubic"
/// The filter that preprocessor_config.json means by `resample`: PIL.Image.Resampling's number.
std::optional<Filter> filter_numbered(int64_t number);

/// Resizes an image to what `Image.resize((width, height), filter)` of Pillow 13 gives, bit for bit.
///
/// Filters other than nearest widen with the ratio where an image shrinks (antialiasing). Two passes
/// with weights of 22 fractional bits and values of 8 bits in between, as in Pillow's Resample.c:
/// rows first, or columns if the height shrinks by more than twice the pixels of the width.
/// Thread-safe; one thread.
/// @param width, height 1 or more
Image resize(const Image& image, int64_t width, int64_t height, Filter filter);
/// Weights of the last sizes, for images of the same size. One thread at a time.
class ResizeMemory {
 public:
  ResizeMemory();
  ~ResizeMemory();

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};
/// The same in the memory of `result`, another image.
void resize(const Image& image, int64_t width, int64_t height, Filter filter, Image& result,
            ResizeMemory& memory);

/// The rectangle of `width` x `height` pixels whose corner is (left, top); black outside the image, as in Pillow's `Image.crop`.
Image crop(const Image& image, int64_t left, int64_t top, int64_t width, int64_t height);
/// The same in the memory of `result`, another image.
void crop(const Image& image, int64_t left, int64_t top, int64_t width, int64_t height,
          Image& result);

/// Adds as many columns and rows of a colour, each 0 or more.
Image pad(const Image& image, int64_t left, int64_t top, int64_t right, int64_t bottom,
          Colour colour = {});
/// The same in the memory of `result`, another image.
void pad(const Image& image, int64_t left, int64_t top, int64_t right, int64_t bottom,
         Colour colour, Image& result);

/// Where a side grows by an odd number of pixels, which end gets one more.
enum class OddPadding {
  kBefore,  ///< left, top: transformers' image_transforms.center_crop, which processors with Pillow call
  kAfter,  ///< right, bottom: transformers' TorchvisionBackend.center_crop
};
/// Where the middle of a side begins: at half of what is left over, or before 0 at half of what is missing.
int64_t centred(int64_t size, int64_t wanted, OddPadding odd);
/// The middle of an image, as transformers crops it; black where the image is smaller.
Image centre_crop(const Image& image, int64_t width, int64_t height,
                  OddPadding odd = OddPadding::kBefore);

/// Turns and mirrors the pixels as EXIF's orientation (1 to 8) says, as PIL.ImageOps.exif_transpose does.
Image oriented(Image image, int orientation);

}  // namespace sftrun::images
