#include <ATen/ATen.h>

#include <utility>

#include "sftrun/model/decoder.h"

/// Joint linears: products that are computed as one on CUDA.
namespace sftrun::model {
void Decoder::join_linears(int64_t unit, layers::UnreadStorages& unread) {
  if (!options_.device.is_cuda() || options_.shared_weights) return;
  int64_t spare_below = 0;
  for (Layer& layer : layers_) {
    if (layer.unit == unit) join_linears(layer, unread);
    layer.spare_below = std::exchange(spare_below, layer.feed_forward.joint_down.spare());
  }
  if (const auto joints = unit_joints_.find(unit); joints != unit_joints_.end()) {
    joints->second.memory.place();
    joints->second.memory.forget_sources();
  }
}

void Decoder::join_linears(Layer& layer, layers::UnreadStorages& unread) {
  for (const auto& [joint, linears] : layer.joints())
    if (!linears.empty()) join(*joint, linears, layer.unit, unread);
}

void Decoder::join(layers::JointLinears& joint, const std::vector<layers::Linear*>& linears,
                   int64_t unit, layers::UnreadStorages& unread) {
  if (!layers::can_join(linears)) return;
  joint = layers::join(linears, unread);
  joint.unit = unit;
  const bool units_leave = options_.buffers.is_per_unit;
  if (!units_leave) {
    joint_adapters_.add(joint);
  } else if (joint.has_adapters()) {
    UnitJoints& joints = unit_joints_[unit];
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

void Decoder::refresh_joints() {
  if (joints_version_ == store_.version()) return;
  joint_adapters_.refresh();
  joints_version_ = store_.version();
}

void Decoder::prepare_joints(layers::DequantPrefetcher::Pass pass, layers::UnitHooks* hooks) {
  refresh_joints();
  if (prefetcher_) prefetcher_->begin(pass, hooks);
}

void Decoder::unit_arrived(int64_t unit) {
  const auto found = unit_joints_.find(unit);
  if (found != unit_joints_.end()) {
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

void Decoder::unit_leaves(int64_t unit) {
  if (prefetcher_) prefetcher_->leaving(unit);
  const auto found = unit_joints_.find(unit);
  if (found == unit_joints_.end()) return;
  if (const at::Tensor& memory = found->second.memory.bytes(); memory.defined())
    layers::release_memory(memory);
}

void Decoder::join_prefetch() {
  if (prefetcher_) prefetcher_->join();
}

void Decoder::forget_prefetch() {
  if (prefetcher_) prefetcher_->forget();
}

}  // namespace sftrun::model
