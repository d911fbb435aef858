// The products of LoRA adapters on a GPU beside a copy of memory: y += low B^T by our kernel and by
// LibTorch's, gradients of A and B, x A^T and dy B. Shapes of Qwen3-0.6B and Qwen3-8B.
//
//     ninja -C build adapter_bandwidth && build/bin/adapter_bandwidth [tokens] [rounds]
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bandwidth.h"
#include "sftrun/kernels/ops.h"
#include "support/cuda_kernels.h"

namespace {

using namespace sftrun;

/// Operands that a measurement uses in turn: more memory than an L2 cache holds.
constexpr double kMaxCached = 128e6;
constexpr int kMinCalls = 12;

struct Shape {
  std::string model;
  int64_t columns, rank;  ///< of the wide side and of the other
};

at::TensorOptions on_card(at::ScalarType dtype) {
  return at::TensorOptions().device(at::kCUDA).dtype(dtype);
}

/// [tokens, columns] with `spare` columns after each row.
at::Tensor rows(int64_t tokens, int64_t columns, int64_t spare) {
  return at::randn({tokens, columns + spare}, on_card(at::kBFloat16)).narrow(1, 0, columns);
}
at::Tensor spare_of(const at::Tensor& x, int64_t spare) {
  return x.as_strided({x.size(0), spare}, x.strides(), x.storage_offset() + x.size(1));
}

/// The GPU's time for calls that are queued while it is busy with something else: launching takes the
/// host longer than these kernels take.
class OnGpu {
 public:
  /// A copy of 256 KiB for each token takes longer than launching.
  explicit OnGpu(int64_t tokens)
      : from_(at::ones({tokens, 1 << 16}, on_card(at::kFloat))), to_(at::empty_like(from_)) {}

  double seconds_of(const std::vector<std::function<void()>>& calls) {
    constexpr auto kTimed = c10::EventFlag::BACKEND_DEFAULT;
    c10::Event begin(c10::DeviceType::CUDA, kTimed), end(c10::DeviceType::CUDA, kTimed);
    const c10::Stream stream =
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(from_.device());
    for (int i = 0; i < 3; ++i) to_.copy_(from_);
    begin.record(stream);
    for (const auto& call : calls) call();
    end.record(stream);
    at::accelerator::synchronizeDevice(0);
    return begin.elapsedTime(end) / 1e3;
  }

 private:
  at::Tensor from_, to_;
};

/// How many sets of operands of so many bytes a measurement has.
int copies_of(double bytes) {
  constexpr int kMin = 2, kMax = 32;
  return std::clamp(static_cast<int>(kMaxCached / bytes) + 1, kMin, kMax);
}

/// @param bytes that a call moves   @param calls one for each set of operands
bench::Measurement repeated(OnGpu& gpu, const std::string& name, double bytes,
                            const std::vector<std::function<void()>>& calls) {
  std::vector<std::function<void()>> all;
  while (all.size() < kMinCalls || all.size() % calls.size() != 0)
    all.push_back(calls[all.size() % calls.size()]);
  bench::Measurement measured;
  measured.name = name;
  measured.bytes = bytes * static_cast<double>(all.size());
  measured.calls = static_cast<int>(all.size());
  measured.timed = [&gpu, all] { return gpu.seconds_of(all); };
  return measured;
}

std::string title(const std::string& what, const Shape& shape) {
  return shape.model + " " + what + " " + std::to_string(shape.columns) + ", " +
         std::to_string(shape.rank);
}

/// x A^T (the factor is transposed) or dy B, which read x once: LibTorch's products.
void add_low_rank(OnGpu& gpu, const Shape& shape, int64_t tokens, bool is_transposed,
                  std::vector<bench::Measurement>& all) {
  const double bytes = 2.0 * static_cast<double>(tokens * shape.columns);
  std::vector<std::function<void()>> calls;
  for (int i = 0; i < copies_of(bytes); ++i) {
    const at::Tensor x = rows(tokens, shape.columns, shape.rank);
    const at::Tensor factor = is_transposed ? rows(shape.rank, shape.columns, shape.rank).t()
                                            : rows(shape.columns, shape.rank, 0);
    at::Tensor out = spare_of(x, shape.rank);
    calls.emplace_back([=]() mutable { at::mm_out(out, x, factor); });
  }
  all.push_back(
      repeated(gpu, title(is_transposed ? "x A^T" : "dy B", shape) + ", LibTorch", bytes, calls));
}

/// Gradients of A of all linears with one input, and of their B.
void add_grads(OnGpu& gpu, const std::string& name, int64_t in, const std::vector<int64_t>& outs,
               int64_t rank, int64_t tokens, std::vector<bench::Measurement>& all) {
  std::vector<std::function<void()>> calls;
  int64_t wide = in;
  for (const int64_t out : outs) wide += out;
  const double bytes = 2.0 * static_cast<double>(tokens * wide);
  for (int i = 0; i < copies_of(bytes); ++i) {
    const at::Tensor x = rows(tokens, in, 0);
    std::vector<kernels::AdapterGrad> grads;
    const auto ranks = static_cast<int64_t>(outs.size()) * rank;
    const at::Tensor low = rows(tokens, ranks, 0), d_low = rows(tokens, ranks, 0);
    int64_t column = 0;
    for (const int64_t out : outs) {
      grads.push_back({at::zeros({out, rank}, on_card(at::kFloat)), rows(tokens, out, 0),
                       low.narrow(1, column, rank), 2.0});
      grads.push_back(
          {at::zeros({rank, in}, on_card(at::kFloat)), d_low.narrow(1, column, rank), x});
      column += rank;
    }
    const at::Tensor arrivals =
        at::zeros({wide / kernels::kGradTileColumns + 8}, on_card(at::kInt));
    calls.emplace_back([=] { kernels::add_adapter_grads_(grads, arrivals); });
  }
  all.push_back(repeated(gpu, name + " gradients", bytes, calls));
}

/// y += low B^T, which reads and writes y, with a base, which is read, and without.
void add_sum(OnGpu& gpu, const Shape& shape, int64_t tokens, bool has_base,
             std::vector<bench::Measurement>& all) {
  const double bytes = (has_base ? 6.0 : 4.0) * static_cast<double>(tokens * shape.columns);
  std::vector<std::function<void()>> ours, libtorch;
  for (int i = 0; i < copies_of(bytes); ++i) {
    at::Tensor y = rows(tokens, shape.columns, 0);
    const at::Tensor low = rows(tokens, shape.rank, 0), b = rows(shape.columns, shape.rank, 0).t(),
                     base = has_base ? rows(tokens, shape.columns, 0) : at::Tensor();
    ours.emplace_back([=] { kernels::add_low_rank_(y, low, b, base); });
    libtorch.emplace_back([=]() mutable {
      if (base.defined()) y.add_(base);
      y.addmm_(low, b);
    });
  }
  const std::string what = has_base ? "y += base + low B^T" : "y += low B^T";
  all.push_back(repeated(gpu, title(what, shape), bytes, ours));
  all.push_back(repeated(gpu, title(what, shape) + ", LibTorch", bytes, libtorch));
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atol(argv[1]) : 4096;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  if (tokens <= 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: %s [tokens, 4096] [rounds, 9]: both above 0\n", argv[0]);
    return 2;
  }
  const std::string missing = test::load_cuda_kernels();
  if (!missing.empty()) {
    std::fprintf(stderr, "error: %s\n", missing.c_str());
    return 2;
  }
  OnGpu gpu(tokens);
  const at::Tensor from = at::ones({tokens, 1 << 14}, on_card(at::kFloat)),
                   to = at::empty_like(from);
  std::vector<bench::Measurement> all = {repeated(gpu, "copy",
                                                  2.0 * static_cast<double>(from.nbytes()),
                                                  {[&] { at::Tensor(to).copy_(from); }})};
  for (const Shape& shape : {Shape{"0.6B", 1024, 48},
                             {"0.6B", 3072, 16},
                             {"8B", 4096, 48},
                             {"8B", 4096, 32},
                             {"8B", 4096, 16},
                             {"8B", 12288, 16}})
    add_low_rank(gpu, shape, tokens, /*is_transposed=*/true, all);
  for (const Shape& shape : {Shape{"0.6B", 4096, 48},
                             {"0.6B", 6144, 32},
                             {"0.6B", 1024, 16},
                             {"8B", 6144, 48},
                             {"8B", 24576, 32},
                             {"8B", 4096, 16}})
    add_low_rank(gpu, shape, tokens, /*is_transposed=*/false, all);
  add_grads(gpu, "0.6B q, k, v", 1024, {2048, 1024, 1024}, 16, tokens, all);
  add_grads(gpu, "0.6B o", 2048, {1024}, 16, tokens, all);
  add_grads(gpu, "0.6B gate, up", 1024, {3072, 3072}, 16, tokens, all);
  add_grads(gpu, "0.6B down", 3072, {1024}, 16, tokens, all);
  add_grads(gpu, "8B q, k, v", 4096, {4096, 1024, 1024}, 16, tokens, all);
  add_grads(gpu, "8B o", 4096, {4096}, 16, tokens, all);
  add_grads(gpu, "8B gate, up", 4096, {12288, 12288}, 16, tokens, all);
  add_grads(gpu, "8B down", 12288, {4096}, 16, tokens, all);
  for (const Shape& shape :
       {Shape{"8B", 6144, 48}, {"8B", 24576, 32}, {"8B", 4096, 16}, {"8B", 12288, 16}})
    add_sum(gpu, shape, tokens, /*has_base=*/false, all);
  add_sum(gpu, {"8B", 4096, 16}, tokens, /*has_base=*/true, all);
  bench::measure(std::move(all), {tokens * (1 << 14), rounds}, "a GPU");
  return 0;
}
