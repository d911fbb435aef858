#include <ATen/ATen.h>

#include <utility>

#include "sftrun/model/decoder.h"

namespace sftrun::model {

DecoderJoints::DecoderJoints(const DecoderOptions& options, const layers::ParameterStore& store,
                             std::vector<layers::Layer>& layers)
    : options_(options), store_(store), layers_(layers) {}

void DecoderJoints::join_unit(int64_t unit, layers::UnreadStorages& unread) {
  if (!options_.device.is_cuda() || options_.shared_weights) return;
  int64_t spare_below = 0;
  for (layers::Layer& layer : layers_) {
    if (layer.unit == unit)
      for (const auto& [joint, linears] : layer.joints())
        if (!linears.empty()) join(*joint, linears, unit, unread);
    layer.spare_below = std::exchange(spare_below, layer.feed_forward.joint_down.spare());
  }
  if (const auto joints = units_.find(unit); joints != units_.end()) {
    joints->second.memory.place();
    joints->second.memory.forget_sources();
  }
}

void DecoderJoints::join(layers::JointLinears& joint, const std::vector<layers::Linear*>& linears,
                         int64_t unit, layers::UnreadStorages& unread) {
  if (!layers::can_join(linears)) return;
  joint = layers::join(linears, unread);
  joint.unit = unit;
  const bool units_leave = options_.buffers.is_per_unit;
  if (!units_leave) {
    adapters_.add(joint);
  } else if (joint.has_adapters()) {
    UnitJoints& joints = units_[unit];
    (joint.whole.defined() ? joints.beside_weights : joints.in_memory).add(joint);
    if (!joint.whole.defined()) joints.memory.add(joint.a), joints.memory.add(joint.b);
  }
  if (!joint.is_quantized()) return;
  if (!prefetcher_)
    prefetcher_ =
        std::make_unique<layers::DequantPrefetcher>(options_.device, options_.dtype, units_leave);
  prefetcher_->serve(joint);
  joint.prefetcher = prefetcher_.get();
}

void DecoderJoints::refresh() {
  if (version_ == store_.version()) return;
  adapters_.refresh();
  version_ = store_.version();
}

void DecoderJoints::prepare(layers::DequantPrefetcher::Pass pass, layers::UnitHooks* hooks) {
  refresh();
  if (prefetcher_) prefetcher_->begin(pass, hooks);
}

void DecoderJoints::unit_arrived(int64_t unit) {
  const auto found = units_.find(unit);
  if (found != units_.end()) {
    UnitJoints& joints = found->second;
    if (const at::Tensor& memory = joints.memory.bytes(); memory.defined()) {
      layers::reserve_memory(memory);
      memory.zero_();
    }
    joints.beside_weights.refresh();
    joints.in_memory.refresh();
  }
  if (prefetcher_) prefetcher_->arrived(unit);
}

void DecoderJoints::unit_leaves(int64_t unit) {
  if (prefetcher_) prefetcher_->leaving(unit);
  const auto found = units_.find(unit);
  if (found == units_.end()) return;
  if (const at::Tensor& memory = found->second.memory.bytes(); memory.defined())
    layers::release_memory(memory);
}

void DecoderJoints::join_prefetch() {
  if (prefetcher_) prefetcher_->join();
}

void DecoderJoints::forget_prefetch() {
  if (prefetcher_) prefetcher_->forget();
}

}  // namespace sftrun::model
