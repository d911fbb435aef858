#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "../parallel.h"

namespace sftrun::kernels {

/// x of a product x w^T with few rows, in fp32 [count, K].
struct ThinTokens {
  explicit ThinTokens(const at::Tensor& values)
      : x(values.const_data_ptr<float>()), count(values.size(0)) {}
  const float* x;
  int64_t count;
};

/// x w^T by rows of w: calls body(row, out) for each row; each thread has its own body.
template <typename MakeBody>
at::Tensor each_row(const at::Tensor& x, int64_t rows, const MakeBody& make_body) {
  constexpr int64_t kGrain = 16 * 1024;  // minimum number of values of w per thread
  at::Tensor transposed = at::empty({rows, x.size(0)}, at::kFloat);  // w x^T
  float* out = transposed.data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, x.size(1)));
  parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    auto body = make_body();
    for (int64_t row = begin; row < end; ++row) body(row, out + row * x.size(0));
  });
  return transposed.t().to(x.scalar_type()).contiguous();
}

}  // namespace sftrun::kernels
