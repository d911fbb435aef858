#include "sharded_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "copy_stream.h"

namespace sftrun::parallel {

ShardedGradients::ShardedGradients(MeshGroups& groups, const DistributedModel& model,
                                   const KeptValues& kept,
                                   std::function<void(int64_t unit)> before_summing)
    : model_(model),
      kept_(kept),
      before_summing_(std::move(before_summing)),
      shard_group_(groups.along(groups.mesh().shard_axes())),
      replicas_(groups.along(groups.mesh().axes_of_same_values())),
      states_(model.units.size()) {
  if (model.device.is_cuda() && kept.are_on_host()) to_host_.emplace(model.device);
}

void ShardedGradients::hold(int64_t unit) {
  const layers::FlatValues* flat = model_.parameters.buffers_of(unit);
  if (flat == nullptr || state(unit).holds_whole) return;
  if (sum_.unit == unit) finish_sum();
  layers::reserve_memory(flat->grad);
  flat->grad.zero_();
  state(unit).holds_whole = true;
}

void ShardedGradients::start_sum(int64_t unit) {
  UnitState& state_of_unit = state(unit);
  if (!std::exchange(state_of_unit.holds_whole, false)) return;
  finish_sum();
  before_summing_(unit);
  const bool adds = std::exchange(state_of_unit.is_summed, true);
  if (kept_.are_on_host()) return start_sum_to_host(unit, adds);
  const at::Tensor& to = kept(unit);
  sum_.unit = unit;
  if (adds) sum_.part = at::empty_like(to);
  sum_.started =
      shard_group_.reduce_scatter_into_async(sum_.part.defined() ? sum_.part : to, whole(unit));
}

/// This rank's part of the sum is copied to host memory on a stream of its own. The device adds what
/// earlier micro-batches left: the host need not wait for it.
void ShardedGradients::start_sum_to_host(int64_t unit, bool adds) {
  const at::Tensor &in = whole(unit), &to = kept(unit);
  const bool is_divided = to.numel() < in.numel();
  sum_.unit = unit;
  sum_.part = is_divided ? at::empty(to.sizes(), in.options()) : in;
  if (adds) sum_.earlier = at::empty(to.sizes(), in.options());
  const c10::OptionalStreamGuard guard(stream_of(to_host_));
  if (is_divided) shard_group_.reduce_scatter_into(sum_.part, in);
  if (adds) {
    sum_.earlier.copy_(to, /*non_blocking=*/true);
    sum_.part.add_(sum_.earlier);
  }
  to.copy_(sum_.part, /*non_blocking=*/true);
  if (to_host_) sum_.started = StartedCollective(to_host_->until_now());
}

void ShardedGradients::finish_sum() {
  if (sum_.unit < 0) return;
  sum_.started.wait();
  if (sum_.part.defined() && !kept_.are_on_host()) kept(sum_.unit).add_(sum_.part);
  layers::release_memory(whole(sum_.unit));
  sum_ = {};
}

void ShardedGradients::begin_step() {
  for (UnitState& state_of_unit : states_) state_of_unit.is_summed = false;
}

void ShardedGradients::finish_step() {
  const auto num_units = static_cast<int64_t>(states_.size());
  // A borrowed unit is not among those whose gradients are said to be ready.
  for (int64_t unit = num_units - 1; unit >= 0; --unit)
    if (!model_.parameters.owns(unit)) start_sum(unit);
  finish_sum();
  if (to_host_) to_host_->synchronize();  // the optimizer runs on the host
  for (int64_t unit = 0; unit < num_units; ++unit)
    if (!state(unit).is_summed && kept(unit).defined()) kept(unit).zero_();
  if (replicas_.size() > 1) sum_over_replicas();
}

void ShardedGradients::sum_over_replicas() {
  // Gradients in host memory are summed on the device, unit by unit: NCCL sends from there.
  const at::Tensor& owned = kept_.owned().flat.grad;
  const bool are_here = owned.device() == model_.device;
  if (are_here) replicas_.all_reduce(owned);
  for (int64_t unit = 0; unit < static_cast<int64_t>(states_.size()); ++unit) {
    if (!kept(unit).defined() || (are_here && model_.parameters.owns(unit))) continue;
    const at::Tensor sum = kept(unit).to(model_.device);
    replicas_.all_reduce(sum);
    if (!sum.is_same(kept(unit))) kept(unit).copy_(sum);
  }
}

}  // namespace sftrun::parallel
