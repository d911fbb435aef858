#include <ATen/ATen.h>

#include "adamw/adamw_launch.h"
#include "cuda/launch.h"
#include "operands.h"
#include "parallel.h"
#include "row_kernels.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_sum_of_squares)> launch_sum_of_squares(
    "launch_sum_of_squares");

at::Tensor sum_on_cuda(const at::Tensor& flat) {
  const int64_t chunks = (flat.numel() + cuda::kSumChunk - 1) / cuda::kSumChunk;
  const auto options = flat.options().dtype(at::kDouble);
  at::Tensor partial = at::empty({chunks}, options), total = at::empty({}, options);
  const Launch launch(flat);
  launch_sum_of_squares(flat.data_ptr<float>(), flat.numel(), partial.data_ptr<double>(),
                        total.data_ptr<double>(), launch.stream());
  launch.check();
  return total;
}

}  // namespace

at::Tensor sum_of_squares(const at::Tensor& flat) {
  const ProfileRange range("sum_of_squares");
  require_operand(flat, flat, at::kFloat);
  if (flat.is_cuda()) return sum_on_cuda(flat);
  constexpr int64_t kChunk = 65536;
  const int64_t num_chunks = (flat.numel() + kChunk - 1) / kChunk;
  std::vector<double> partial(static_cast<size_t>(num_chunks));
  parallel_for(0, num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kChunk;
      partial[static_cast<size_t>(chunk)] = cpu_kernels().sum_of_squares(
          data<float>(flat) + first, std::min(kChunk, flat.numel() - first));
    }
  });
  double total = 0;
  for (const double value : partial) total += value;
  return at::scalar_tensor(total, at::kDouble);
}

}  // namespace sftrun::kernels
