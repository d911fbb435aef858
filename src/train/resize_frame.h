#pragma once

#include "sftrun/images/transform.h"

namespace sftrun::train {

/// Resizes as torchvision 0.26 does for uint8, which is LibTorch's kernel: bicubic with antialiasing, also where Lanczos is asked for
/// (transformers' TorchvisionBackend.resize with torchvision before 0.27). Thread-safe; one thread.
/// @param width, height 1 or more
images::Image resize_as_torchvision(const images::Image& image, int64_t width, int64_t height,
                                    images::Filter filter);

}  // namespace sftrun::train
