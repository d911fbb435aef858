#include "resize_frame.h"

#include <ATen/ATen.h>

#include <cstring>

#include "sftrun/core/error.h"

namespace sftrun::train {

images::Image resize_as_torchvision(const images::Image& image, int64_t width, int64_t height,
                                    images::Filter filter) {
  SFTRUN_CHECK(filter == images::Filter::kBicubic || filter == images::Filter::kLanczos);
  const at::Tensor from = at::from_blob(const_cast<uint8_t*>(image.pixels.data()),
                                        {1, image.height, image.width, 3}, at::kByte)
                              .permute({0, 3, 1, 2});
  const at::Tensor to = at::_upsample_bicubic2d_aa(from, {height, width}, /*align_corners=*/false)
                            .permute({0, 2, 3, 1})
                            .contiguous();
  images::Image resized(width, height);
  std::memcpy(resized.pixels.data(), to.const_data_ptr<uint8_t>(), resized.pixels.size());
  return resized;
}

}  // namespace sftrun::train
