#include <utility>

#include "layer_members.h"
#include "sftrun/model/decoder.h"

/// Joint linears: products that are computed as one on CUDA.
namespace sftrun::model {
namespace {

/// Whether q, k and v are separate tensors with optional norms per head, and nothing else uses
/// them.
bool reads_heads_alone(const Layer& layer) {
  const auto is_of_heads = [&](const layers::Norm& norm) {
    return !norm.defined() || norm.weight.numel() == layer.attention.head_dim;
  };
  return !layer.delta_net.defined() && !layer.fuses_qkv() && layer.keys_of < 0 &&
         !layer.lends_keys && !layer.value_is_key && !layer.gates_attention &&
         !layer.v_norm.defined() && is_of_heads(layer.q_norm) && is_of_heads(layer.k_norm);
}

}  // namespace

void Decoder::join_linears() {
  // A joint matrix holds frozen weights and copies of the adapters, which cannot be released apart.
  if (!options_.device.is_cuda() || options_.buffers.is_per_unit) return;
  if (options_.shared_weights) return;
  int64_t spare_below = 0;
  for (Layer& layer : layers_) {
    if (reads_heads_alone(layer)) join(layer.joint_qkv, {&layer.q, &layer.k, &layer.v});
    join(layer.joint_o, {&layer.o});
    if (!layer.mixture.defined()) {
      join(layer.joint_gate_up, {&layer.gate, &layer.up});
      join(layer.joint_down, {&layer.down});
    }
    layer.spare_below = std::exchange(spare_below, layer.joint_down.spare());
  }
}

void Decoder::join(layers::JointLinears& joint, const std::vector<layers::Linear*>& linears) {
  if (!layers::can_join(linears)) return;
  joint = layers::join(linears);
  joint_adapters_.add(joint);
  if (!joint.is_quantized()) return;
  if (!prefetcher_)
    prefetcher_ = std::make_unique<layers::DequantPrefetcher>(options_.device, options_.dtype);
  prefetcher_->serve(joint);
  joint.prefetcher = prefetcher_.get();
}

void Decoder::refresh_joints() {
  if (joints_version_ == store_.version()) return;
  joint_adapters_.refresh();
  joints_version_ = store_.version();
}

void Decoder::prepare_joints(layers::DequantPrefetcher::Pass pass) {
  refresh_joints();
  if (prefetcher_) prefetcher_->begin(pass);
}

void Decoder::join_prefetch() {
  if (prefetcher_) prefetcher_->join();
}

void Decoder::forget_prefetch() {
  if (prefetcher_) prefetcher_->forget();
}

}  // namespace sftrun::model
