#include "sftrun/layers/generation_pass.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace sftrun::layers {

StepMasks::StepMasks(std::span<const int64_t> lengths, at::Device device)
    : lengths_(lengths.begin(), lengths.end()) {
  on_device_ = at::tensor(lengths_, at::kLong).to(device).view({-1, 1, 1, 1});
}

const StepMasks::Span& StepMasks::of_window(int64_t window) {
  const auto found = spans_.find(window);
  return found != spans_.end() ? found->second : spans_.emplace(window, make(window)).first->second;
}

StepMasks::Span StepMasks::make(int64_t window) const {
  const auto [shortest, longest] = std::minmax_element(lengths_.begin(), lengths_.end());
  Span span;
  span.first = window > 0 ? std::max<int64_t>(0, *shortest - window) : 0;
  span.count = *longest - span.first;
  if (*shortest == *longest) return span;
  const at::Tensor positions = at::arange(span.first, *longest, on_device_.options());
  span.hidden = positions >= on_device_;
  if (window > 0) span.hidden = span.hidden | (positions < on_device_ - window);
  return span;
}

}  // namespace sftrun::layers
