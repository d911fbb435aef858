#include "sftrun/spec/graph_limit.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::spec {
namespace {

/// Number of weights that a token is multiplied by.
double values_of_a_token(const ArchSpec& arch) {
  const auto size_of = [](const auto& matrix) {
    return static_cast<double>(matrix.in_features) * static_cast<double>(matrix.out_features);
  };
  double values = static_cast<double>(arch.vocab_size) * static_cast<double>(arch.hidden_size);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const LinearSpec& linear : layer_linears(arch, layer)) values += size_of(linear);
    for (const ExpertSpec& matrix : layer_experts(arch, layer))
      values += static_cast<double>(arch.mixture.top_k) * size_of(matrix);
  }
  return values;
}

}  // namespace

int64_t tokens_worth_a_graph(const ArchSpec& arch, bool trains_all) {
  // Measured with Qwen3-0.6B on an H100 (docs/gpu-performance.md): 1221 launches of a step took the
  // host 17.7 ms. At these sizes the GPU computes 200 TFLOP/s.
  constexpr double kLaunchesOfLayer = 45, kSecondsOfLaunch = 13e-6, kFlops = 2e14;
  const double flops_of_token = (trains_all ? 6 : 4) * values_of_a_token(arch);
  const double host_seconds =
      kLaunchesOfLayer * kSecondsOfLaunch * static_cast<double>(arch.num_layers + 1);
  return static_cast<int64_t>(host_seconds * kFlops / flops_of_token);
}

}  // namespace sftrun::spec
