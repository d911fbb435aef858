#include "sharded_values.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "copy_stream.h"
#include "sftrun/core/error.h"

namespace sftrun::parallel {

using layers::FlatValues;
using layers::UnitPass;

ShardedValues::ShardedValues(bool gathers_masters, MeshGroups& groups,
                             const DistributedModel& model, std::unique_ptr<UnitShards> shards)
    : gathers_masters_(gathers_masters),
      model_(model),
      shards_(std::move(shards)),
      shard_group_(groups.along(groups.mesh().shard_axes())),
      kept_(gathers_masters, model, *shards_),
      gradients_(groups, model, kept_, [this](int64_t unit) { tell_summing(unit); }),
      states_(model.units.size()) {
  SFTRUN_CHECK(groups.mesh().sizes() == shards_->mesh().sizes());
  if (model.device.is_cuda() && (shards_->sharding().frozen_on_host || kept_.are_on_host()))
    copies_.emplace(model.device);
}

StoredBytes ShardedValues::stored_bytes() const {
  StoredBytes bytes;
  for (const KeptValues::OfUnit& unit_state : kept_.units())
    if (unit_state.values.master.defined() && !kept_.are_on_host()) {
      bytes += stored_bytes_of(unit_state.values);
      for (const at::Tensor* start : {&unit_state.start_master, &unit_state.start_compute})
        if (start->defined()) bytes.trainable += start->nbytes();
    }
  const Sharding& sharding = shards_->sharding();
  const auto add = [&](uint64_t& sum, const at::Tensor& flat) {
    sum += flat.nbytes();
    if (flat.storage().data() == nullptr) bytes.unallocated += flat.nbytes();
  };
  if (shards_->takes_frozen()) bytes.frozen = 0;
  for (int64_t unit = 0; unit < static_cast<int64_t>(states_.size()); ++unit) {
    const at::Tensor& frozen = shards_->parts(unit).frozen;
    if (frozen.defined() && !sharding.frozen_on_host) *bytes.frozen += frozen.nbytes();
    const FlatValues* flat = buffers(unit);
    if (flat == nullptr) continue;
    if (!sharding.releases_gradients()) add(bytes.gradients, flat->grad);
    if (sharding.releases_trained()) continue;
    if (kept_.unit(unit).reads_masters) add(bytes.trainable, flat->master);
    if (!flat->compute.is_same(flat->master)) add(bytes.trainable, flat->compute);
  }
  return bytes;
}

bool ShardedValues::is_here(int64_t unit) const {
  const UnitState& unit_state = states_[static_cast<size_t>(unit)];
  const bool has_frozen = unit_state.has_frozen || !shards_->parts(unit).frozen.defined();
  return has_frozen && unit_state.version == model_.parameters.version();
}

void ShardedValues::start_gathering(int64_t unit) {
  // Outdated values, which were gathered ahead in vain: Gloo's threads could write them last.
  finish_gathering(unit);
  UnitState& unit_state = state(unit);
  const at::Tensor& frozen = shards_->parts(unit).frozen;
  if (frozen.defined() && !std::exchange(unit_state.has_frozen, true))
    bring(unit_state, model_.units[static_cast<size_t>(unit)].frozen.bytes(), frozen,
          shards_->frozen_parts());
  if (std::exchange(unit_state.version, model_.parameters.version()) == model_.parameters.version())
    return;
  const FlatValues* flat = buffers(unit);
  if (flat == nullptr) return;
  tell_reading(unit);
  const int64_t parts = shards_->mesh().shards();
  const KeptValues::OfUnit& kept = kept_.unit(unit);
  const bool of_start = model_.parameters.reads_start();
  if (kept.reads_masters) bring(unit_state, flat->master, kept.master(of_start), parts);
  if (!flat->compute.is_same(flat->master) && !gathers_masters_)
    bring(unit_state, flat->compute, kept.compute(of_start), parts);
}

/// Starts to gather a unit's values into `flat`. What waits in host memory is copied on a stream of
/// its own first.   @param part of this rank, one of `parts`
void ShardedValues::bring(UnitState& unit_state, const at::Tensor& flat, const at::Tensor& part,
                          int64_t parts) {
  layers::reserve_memory(flat);
  // The values are those that a forward pass may have saved, so autograd must not count a change:
  // `variable_data` has a version counter of its own.
  const at::Tensor whole = flat.variable_data();
  const bool is_on_host = part.device() != whole.device();
  if (!is_on_host && parts == shard_group_.size()) {
    unit_state.gathering.push_back(shard_group_.all_gather_into_async(whole, part));
    return;
  }
  const c10::OptionalStreamGuard guard(stream_of(copies_));
  const at::Tensor own = shards_->part_of(whole, parts);
  own.copy_(part, /*non_blocking=*/true);
  if (parts > 1)
    unit_state.gathering.push_back(shard_group_.all_gather_into_async(whole, own));
  else if (copies_)
    unit_state.gathering.emplace_back(copies_->until_now());
}

void ShardedValues::finish_gathering(int64_t unit) {
  UnitState& unit_state = state(unit);
  if (unit_state.gathering.empty()) return;
  for (StartedCollective& collective : unit_state.gathering) collective.wait();
  unit_state.gathering.clear();
  const FlatValues* flat = buffers(unit);
  if (flat == nullptr || !gathers_masters_ || flat->compute.is_same(flat->master)) return;
  layers::reserve_memory(flat->compute);
  flat->compute.variable_data().copy_(flat->master);
}

/// Starts to gather the unit that followed the last two uses the last time they came one after the
/// other. Not across the beginning of a forward pass, before which the weights may change.
void ShardedValues::gather_ahead(const Use& current) {
  followers_[{before_last_, last_}] = current;
  before_last_ = std::exchange(last_, current);
  const auto found = followers_.find({before_last_, last_});
  if (found == followers_.end()) return;
  const Use& next = found->second;
  const bool begins_pass = next.unit == 0 && next.pass == UnitPass::kForward;
  if (!begins_pass && !is_here(next.unit)) start_gathering(next.unit);
}

void ShardedValues::before(int64_t unit, UnitPass pass) {
  if (!is_here(unit)) start_gathering(unit);
  finish_gathering(unit);
  gather_ahead({unit, pass});
  if (pass == UnitPass::kBackward) gradients_.hold(unit);
}

void ShardedValues::after(int64_t unit, UnitPass pass) {
  if (pass == UnitPass::kBackward && shards_->sharding().releases_gradients())
    gradients_.start_sum(unit);
  release(unit);
}

bool ShardedValues::await_frozen(int64_t unit) {
  const UnitState& unit_state = state(unit);
  if (!shards_->parts(unit).frozen.defined()) return true;
  if (!unit_state.has_frozen) return false;
  for (const StartedCollective& collective : unit_state.gathering) collective.wait_beside();
  return true;
}

void ShardedValues::release(int64_t unit) {
  UnitState& unit_state = state(unit);
  if (std::exchange(unit_state.has_frozen, false))
    layers::release_memory(model_.units[static_cast<size_t>(unit)].frozen.bytes());
  if (!shards_->sharding().releases_trained()) return;
  if (const FlatValues* flat = buffers(unit)) {
    layers::release_memory(flat->master);
    layers::release_memory(flat->compute);
  }
  unit_state.version = 0;
}

}  // namespace sftrun::parallel
