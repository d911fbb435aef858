#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "fused_block.h"
#include "linear/fused_norms.h"
#include "sftrun/core/error.h"
#include "sftrun/layers/delta_net.h"

/// The delta net as a mixer: with norms, output projection and residual, and in generation.
namespace sftrun::layers {
namespace {

/// In a pass of the fused backend.
class DeltaNetPass final : public FusedBlock, public MixerPass {
 public:
  DeltaNetPass(const Layer& layer, const DeltaNet& net, const BatchContext& batch)
      : FusedBlock(layer, batch), net_(net) {}

  at::Tensor forward(const at::Tensor& x, bool keeps) override {
    Run* keep = keeps ? &run_.emplace() : nullptr;
    const at::Tensor copy = copy_for_sum(x, l_.mixer_in, net_.joint_output, l_.mixer_out);
    const Normed in = normed(x, l_.mixer_in, copy);
    at::Tensor read = delta_net_forward(net_, in.y, batch_, keep ? &keep->delta : nullptr);
    at::Tensor y = add_read(x, read, keep ? &keep->joined : nullptr, copy);
    if (keep) keep->x = x, keep->rstd = in.rstd, keep->read = std::move(read);
    return y;
  }

  at::Tensor backward(const at::Tensor& grad, bool needs_dx) override {
    Run run = std::exchange(run_, std::nullopt).value();
    const Norm& norm = l_.mixer_in;
    const bool through_norm = needs_dx || norm.parameter != nullptr,
               through_net = through_norm || net_.trains();
    const at::Tensor d_read = join_backward(grad, run.read, net_.output, net_.joint_output,
                                            l_.mixer_out, run.joined, through_net);
    if (!through_net) return {};
    const at::Tensor d_normed = delta_net_backward(net_, std::move(run.delta), d_read,
                                                   normed(run.x, norm).y, batch_, through_norm);
    if (!through_norm) return {};
    return norm_backward(d_normed, run.x, norm, run.rstd, grad, needs_dx, l_.spare_below);
  }

  bool needs_gradient() const override {
    return l_.mixer_in.parameter != nullptr || l_.mixer_out.parameter != nullptr || net_.trains() ||
           net_.output.trains();
  }

  /// The norm before it: x [T, hidden].
  at::Tensor normed_input(const at::Tensor& x) const { return normed(x, l_.mixer_in).y; }
  /// @param read [T, values], what the net answers
  at::Tensor add_read(const at::Tensor& x, const at::Tensor& read, Joined* joined = nullptr,
                      const at::Tensor& copy = {}) {
    return join(x, read, net_.output, net_.joint_output, l_.mixer_out, joined, copy);
  }

 private:
  struct Run {
    at::Tensor x, rstd, read;
    DeltaRun delta;
    Joined joined;
  };

  const DeltaNet& net_;
  std::optional<Run> run_;
};

/// The states of sequences, which do not grow with their tokens.
class DeltaCache final : public LayerCache {
 public:
  explicit DeltaCache(uint64_t bytes_of_state) : bytes_of_state_(bytes_of_state) {}
  uint64_t bytes_of_token() const override { return 0; }
  uint64_t bytes_of_row() const override { return bytes_of_state_; }
  void grow(int64_t rows, int64_t /*capacity*/) override {
    states_.resize(static_cast<size_t>(rows));
  }
  void move_row(int64_t from, int64_t to) override { state(to) = std::move(state(from)); }
  DeltaState& state(int64_t row) { return states_.at(static_cast<size_t>(row)); }

 private:
  uint64_t bytes_of_state_;
  std::vector<DeltaState> states_;
};

}  // namespace

BlockMembers DeltaNet::members() {
  return {.norms = {{"norm", &norm}},
          .weights = {{"conv", place_of(conv)},
                      {"a_log", place_of(a_log)},
                      {"dt_bias", place_of(dt_bias)}},
          .linears = {{"in_proj_qkv", &in_qkv},
                      {"in_proj_z", &in_z},
                      {"in_proj_b", &in_b},
                      {"in_proj_a", &in_a},
                      {"out_proj", &output}}};
}

std::unique_ptr<MixerPass> DeltaNet::pass(const Layer& layer, const BatchContext& batch) const {
  return std::make_unique<DeltaNetPass>(layer, *this, batch);
}

std::unique_ptr<LayerCache> DeltaNet::make_cache(const at::TensorOptions& options) const {
  const at::Tensor& kernels = conv.weight;  // [channels, kernel]
  const auto window = static_cast<uint64_t>(kernels.size(0) * (kernels.size(-1) - 1)) *
                      options.dtype().itemsize(),
             memory = static_cast<uint64_t>(num_value_heads * key_dim * value_dim) * sizeof(float);
  return std::make_unique<DeltaCache>(window + memory);
}

/// @pre one document is read, or some rows get their next tokens
at::Tensor DeltaNet::generate(const Layer& layer, const at::Tensor& x,
                              const GenerationPass& pass) const {
  DeltaNetPass block(layer, *this, pass.context);
  auto& cache = static_cast<DeltaCache&>(*pass.caches[static_cast<size_t>(layer.index)]);
  const at::Tensor in = block.normed_input(x);
  if (!pass.prefill.rows.empty()) {
    SFTRUN_CHECK(pass.prefill.rows.size() == 1 && pass.decode.count == 0);
    DeltaState& state = cache.state(static_cast<int64_t>(pass.prefill.rows[0]));
    return block.add_read(x, delta_net_forward(*this, in, pass.context, nullptr, &state));
  }
  std::vector<at::Tensor> tokens;
  for (int64_t row = 0; row < x.size(0); ++row)
    tokens.push_back(delta_net_step(*this, in.narrow(0, row, 1), pass.context, cache.state(row)));
  return block.add_read(x, at::cat(tokens));
}

namespace delta_net {

std::unique_ptr<Mixer> make(const spec::ArchSpec& arch, int64_t /*index*/,
                            const MixerOptions& /*options*/) {
  auto net = std::make_unique<DeltaNet>();
  net->num_key_heads = arch.delta_net.num_key_heads;
  net->num_value_heads = arch.delta_net.num_value_heads;
  net->key_dim = arch.delta_net.key_dim;
  net->value_dim = arch.delta_net.value_dim;
  return net;
}

}  // namespace delta_net
}  // namespace sftrun::layers
