// Attention forward and backward on a GPU: FlashAttention beside cuDNN's kernel.
//
//     ninja -C build attention_speed && build/bin/attention_speed [rounds] [longest tokens]
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bandwidth.h"
#include "sftrun/kernels/ops.h"
#include "support/cuda_kernels.h"

namespace {

using namespace sftrun;
using kernels::CudaAttention;

struct Model {
  const char* name;
  int64_t num_heads, num_kv_heads, head_dim;
};
constexpr Model kModels[] = {{"Qwen3-0.6B", 16, 8, 128},
                             {"Qwen3-8B", 32, 8, 128},
                             {"Gemma-3-4B, global layers", 8, 4, 256},
                             {"Gemma-3-27B, global layers", 32, 16, 128}};

struct Documents {
  int64_t count, length;
};
constexpr Documents kBatches[] = {{16, 128}, {2, 2048}, {1, 8192}, {1, 32768}};

/// Calls between two waits for the card, so that it does not wait for the host.
constexpr int kCalls = 4;

class Work {
 public:
  Work(const Model& model, const Documents& documents)
      : shape_{.num_heads = model.num_heads,
               .num_kv_heads = model.num_kv_heads,
               .head_dim = model.head_dim,
               .scale = 1 / std::sqrt(static_cast<double>(model.head_dim))} {
    for (int64_t i = 0; i <= documents.count; ++i)
      batch_.cu_seqlens.push_back(static_cast<int32_t>(i * documents.length));
    batch_.max_seqlen = static_cast<int32_t>(documents.length);
    batch_.cu_seqlens_device = at::tensor(batch_.cu_seqlens, at::kInt).to(at::kCUDA);
    const auto values = [&](int64_t heads) {
      return at::randn({documents.count * documents.length, heads * model.head_dim},
                       at::device(at::kCUDA).dtype(at::kBFloat16));
    };
    q_ = values(model.num_heads), d_out_ = values(model.num_heads);
    k_ = values(model.num_kv_heads), v_ = values(model.num_kv_heads);
  }

  /// @return whether the kernel was cuDNN's
  bool run(CudaAttention on_cuda) const {
    kernels::AttentionShape shape = shape_;
    shape.on_cuda = on_cuda;
    const kernels::AttentionOutput out = kernels::attention_forward(q_, k_, v_, batch_, shape);
    kernels::attention_backward(d_out_, q_, k_, v_, out, batch_, shape);
    return out.by_cudnn;
  }

  double median_ms(CudaAttention on_cuda, int rounds) const {
    std::vector<double> seconds;
    for (int round = -1; round < rounds; ++round) {  // the first warms up
      const double taken = bench::seconds_of([&] {
        for (int i = 0; i < kCalls; ++i) run(on_cuda);
        at::accelerator::synchronizeDevice(0);
      });
      if (round >= 0) seconds.push_back(taken / kCalls);
    }
    std::sort(seconds.begin(), seconds.end());
    return 1e3 * seconds[seconds.size() / 2];
  }

 private:
  kernels::AttentionShape shape_;
  kernels::BatchMetadata batch_;
  at::Tensor q_, k_, v_, d_out_;
};

/// Two products forward and five backward, over half of all pairs.
double flops_of(const Model& model, const Documents& documents) {
  constexpr double kProducts = 7, kPerPairAndChannel = 2, kCausal = 0.5;
  const auto length = static_cast<double>(documents.length);
  return kProducts * kPerPairAndChannel * kCausal * static_cast<double>(documents.count) * length *
         length * static_cast<double>(model.num_heads * model.head_dim);
}

void compare(const Model& model, const Documents& documents, int rounds) {
  const Work work(model, documents);
  const double flash_ms = work.median_ms(CudaAttention::kFlash, rounds),
               teraflops = flops_of(model, documents) / 1e12;
  std::printf("%-26s %2lld x %5lld tokens  flash %8.3f ms %4.0f TFLOP/s", model.name,
              static_cast<long long>(documents.count), static_cast<long long>(documents.length),
              flash_ms, 1e3 * teraflops / flash_ms);
  if (work.run(CudaAttention::kCudnn)) {
    const double cudnn_ms = work.median_ms(CudaAttention::kCudnn, rounds);
    std::printf("  cudnn %8.3f ms %4.0f TFLOP/s  %.2f times as fast\n", cudnn_ms,
                1e3 * teraflops / cudnn_ms, flash_ms / cudnn_ms);
  } else {
    std::printf("  cudnn not used\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  const int64_t longest = argc > 2 ? std::atol(argv[2]) : 32768;
  if (rounds <= 0 || longest <= 0) {
    std::fprintf(stderr, "usage: %s [rounds] [longest tokens]\n", argv[0]);
    return 2;
  }
  const std::string missing = test::load_cuda_kernels();
  if (!missing.empty()) {
    std::fprintf(stderr, "error: %s\n", missing.c_str());
    return 2;
  }
  const at::NoGradGuard no_grad;
  std::printf("forward and backward, bf16, causal; medians of %d rounds of %d\n", rounds, kCalls);
  for (const Model& model : kModels)
    for (const Documents& documents : kBatches)
      if (documents.length <= longest) compare(model, documents, rounds);
  return 0;
}
