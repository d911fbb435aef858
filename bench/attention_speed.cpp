// Attention forward and backward on a GPU: FlashAttention beside cuDNN's kernel; with `images` also, for models
// that see images both ways, sftrun's own kernels with an image in every 512 tokens.
//
//     ninja -C build attention_speed && build/bin/attention_speed [rounds] [longest tokens] [images]
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
  bool both_ways = false;
};
constexpr Model kModels[] = {{"Qwen3-0.6B", 16, 8, 128},
                             {"Qwen3-8B", 32, 8, 128},
                             {"Gemma-3-4B, global layers", 8, 4, 256, true},
                             {"Gemma-3-27B, global layers", 32, 16, 128, true}};

struct Documents {
  int64_t count, length;
};
constexpr Documents kBatches[] = {{16, 128}, {2, 2048}, {1, 8192}, {1, 32768}};

/// Calls between two waits for the card, so that it does not wait for the host.
constexpr int kCalls = 4;

/// Gemma 3 has 256 tokens for an image.
constexpr int32_t kImage = 256, kImageStep = 512;

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
    if (model.both_ways && documents.length % kImageStep == 0) add_images();
    const auto values = [&](int64_t heads) {
      return at::randn({documents.count * documents.length, heads * model.head_dim},
                       at::device(at::kCUDA).dtype(at::kBFloat16));
    };
    q_ = values(model.num_heads), d_out_ = values(model.num_heads);
    k_ = values(model.num_kv_heads), v_ = values(model.num_kv_heads);
  }

  bool has_images() const { return !batch_.both_ways.empty(); }

  /// @param both_ways with the images
  /// @return whether the kernel was cuDNN's
  bool run(CudaAttention on_cuda, bool both_ways = false) const {
    kernels::AttentionShape shape = shape_;
    shape.on_cuda = on_cuda;
    shape.both_ways = both_ways;
    const kernels::AttentionOutput out = kernels::attention_forward(q_, k_, v_, batch_, shape);
    kernels::attention_backward(d_out_, q_, k_, v_, out, batch_, shape);
    return out.by_cudnn;
  }

  double median_ms(CudaAttention on_cuda, int rounds, bool both_ways = false) const {
    std::vector<double> seconds;
    for (int round = -1; round < rounds; ++round) {  // the first warms up
      const double taken = bench::seconds_of([&] {
        for (int i = 0; i < kCalls; ++i) run(on_cuda, both_ways);
        at::accelerator::synchronizeDevice(0);
      });
      if (round >= 0) seconds.push_back(taken / kCalls);
    }
    std::sort(seconds.begin(), seconds.end());
    return 1e3 * seconds[seconds.size() / 2];
  }

 private:
  void add_images() {
    const int32_t rows = batch_.cu_seqlens.back();
    for (int32_t row = kImageStep - kImage; row < rows; row += kImageStep)
      batch_.both_ways.push_back({row, row + kImage});
    batch_.key_ends_device = kernels::key_ends_of(batch_, rows, at::kCPU).to(at::kCUDA);
  }

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

void compare(const Model& model, const Documents& documents, int rounds, bool with_images) {
  const Work work(model, documents);
  const double flash_ms = work.median_ms(CudaAttention::kFlash, rounds),
               teraflops = flops_of(model, documents) / 1e12;
  std::printf("%-26s %2lld x %5lld tokens  flash %8.3f ms %4.0f TFLOP/s", model.name,
              static_cast<long long>(documents.count), static_cast<long long>(documents.length),
              flash_ms, 1e3 * teraflops / flash_ms);
  if (work.run(CudaAttention::kCudnn)) {
    const double cudnn_ms = work.median_ms(CudaAttention::kCudnn, rounds);
    std::printf("  cudnn %8.3f ms %4.0f TFLOP/s  %.2f times as fast", cudnn_ms,
                1e3 * teraflops / cudnn_ms, flash_ms / cudnn_ms);
  } else {
    std::printf("  cudnn not used");
  }
  if (with_images && work.has_images()) {
    const double own_ms = work.median_ms(CudaAttention::kFlash, (rounds + 2) / 3, true);
    std::printf("  with images %8.3f ms %4.0f TFLOP/s", own_ms, 1e3 * teraflops / own_ms);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  const int64_t longest = argc > 2 ? std::atol(argv[2]) : 32768;
  const bool with_images = argc > 3 && std::string(argv[3]) == "images";
  if (rounds <= 0 || longest <= 0 || (argc > 3 && !with_images)) {
    std::fprintf(stderr, "usage: %s [rounds] [longest tokens] [images]\n", argv[0]);
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
      if (documents.length <= longest) compare(model, documents, rounds, with_images);
  return 0;
}
