#include "sharded_values.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/kernels/host_memory.h"

namespace sftrun::parallel {

using layers::FlatValues;
using layers::UnitPass;

Sharding sharding_of(config::ShardLevel level) {
  return {.gradients = level >= config::ShardLevel::kGradients,
          .parameters = level == config::ShardLevel::kWeights};
}

std::unique_ptr<UnitShards> shards_of(const config::ParallelConfig& config, at::Device device,
                                      const Mesh& mesh) {
  Sharding sharding = sharding_of(config.axes.level);
  sharding.frozen_on_host = config.offload.base == config::Offload::kCpu && device.is_cuda();
  sharding.trained_on_host = config.offload.params == config::Offload::kCpu && device.is_cuda();
  if (!config.axes.has_shards() && !sharding.frozen_on_host && !sharding.trained_on_host)
    return nullptr;
  return std::make_unique<UnitShards>(sharding, mesh);
}

UnitShards::UnitShards(const Sharding& sharding, const Mesh& mesh)
    : sharding_(sharding), mesh_(mesh) {}

at::Tensor UnitShards::part_of(const at::Tensor& flat, int64_t parts) const {
  const int64_t size = flat.numel() / parts;
  SFTRUN_CHECK_EQ(size * parts, flat.numel());
  return flat.narrow(0, parts == 1 ? 0 : mesh_.rank(Axis::kDpShard) * size, size);
}

namespace {

/// Elements [begin, begin + part.numel()) of a unit's masters, read from the model's files.
void read_masters(const std::vector<layers::UnreadValues>& unread, int64_t begin,
                  const at::Tensor& part) {
  const int64_t end = begin + part.numel();
  for (const layers::UnreadValues& values : unread) {
    const int64_t first = std::max(begin, values.offset),
                  last = std::min(end, values.offset + values.numel);
    if (first >= last) continue;
    const at::Tensor to = part.narrow(0, first - begin, last - first),
                     host = to.is_cpu() ? to : at::empty({last - first}, at::kFloat);
    values.read((first - values.offset) * static_cast<int64_t>(sizeof(float)),
                {static_cast<std::byte*>(host.data_ptr()), static_cast<size_t>(host.nbytes())});
    if (!to.is_cpu()) to.copy_(host);
  }
}

}  // namespace

at::Tensor UnitShards::take_frozen(layers::FrozenStorage& frozen) const {
  frozen.place(layers::FrozenStorage::kPartAlignment * frozen_parts());
  const at::Tensor& whole = frozen.bytes();
  if (!whole.defined()) return {};
  const int64_t size = whole.numel() / frozen_parts();
  at::Tensor part = sharding_.frozen_on_host
                        ? kernels::host_zeros({size}, at::kByte, whole.device())
                        : at::empty({size}, whole.options());
  frozen.read(frozen_parts() == 1 ? 0 : mesh_.rank(Axis::kDpShard) * size, part);
  frozen.forget_sources();
  return part;
}

at::Tensor UnitShards::take_masters(layers::Unit& unit, const FlatValues& trained) const {
  const int64_t shards = mesh_.sizes().dp_shard;
  const at::Device device =
      sharding_.trained_on_host ? at::Device(at::kCPU) : trained.master.device();
  if (unit.unread.empty())
    return part_of(trained.master, shards)
        .to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  const int64_t size = trained.master.numel() / shards;
  at::Tensor part = at::zeros({size}, at::TensorOptions().dtype(at::kFloat).device(device));
  read_masters(unit.unread, shards == 1 ? 0 : mesh_.rank(Axis::kDpShard) * size, part);
  unit.unread.clear();
  return part;
}

void UnitShards::take(int64_t index, layers::Unit& unit, FlatValues* trained) {
  const auto i = static_cast<size_t>(index);
  if (parts_.size() <= i) parts_.resize(i + 1);
  Parts& parts = parts_[i];
  if (takes_frozen()) parts.frozen = take_frozen(unit.frozen);
  if (trained == nullptr) return;
  parts.master = take_masters(unit, *trained);
  for (const at::Tensor* flat : {&trained->master, &trained->grad, &trained->compute})
    layers::release_memory(*flat);
}

namespace {

/// The stream of copies, to be made the current one; nullopt: there is none. It waits for what is
/// queued so far, because memory that the allocator gives now may still be in use by it.
std::optional<c10::Stream> stream_of(const std::optional<kernels::SideStream>& copies) {
  if (!copies) return std::nullopt;
  copies->follow_current();
  return copies->stream();
}

}  // namespace

ShardedValues::ShardedValues(bool gathers_masters, MeshGroups& groups,
                             const DistributedModel& model, std::unique_ptr<UnitShards> shards)
    : gathers_masters_(gathers_masters),
      model_(model),
      device_(model.device),
      shards_(std::move(shards)),
      shard_group_(groups.along({Axis::kDpShard})),
      replicas_(groups.along({Axis::kDpReplicate})),
      states_(model.units.size()) {
  SFTRUN_CHECK(groups.mesh().sizes() == shards_->mesh().sizes());
  if (device_.is_cuda() && (shards_->sharding().frozen_on_host || trains_on_host()))
    copies_.emplace(device_);
  if (device_.is_cuda() && trains_on_host()) sent_gradients_.emplace(device_);
  shards_->parts_.resize(model.units.size());
  own_parameters();
}

/// Buffers for values that this rank keeps, with zeros.
FlatValues ShardedValues::allocated(int64_t numel) const {
  const auto zeros = [&](at::ScalarType dtype) {
    return trains_on_host() ? kernels::host_zeros({numel}, dtype, device_)
                            : at::zeros({numel}, at::TensorOptions().dtype(dtype).device(device_));
  };
  FlatValues flat{zeros(at::kFloat), zeros(at::kFloat), {}};
  flat.compute = flat.master;
  if (gathers_masters_) return flat;
  for (int64_t unit = 0; unit < static_cast<int64_t>(states_.size()); ++unit) {
    const FlatValues* whole = buffers(unit);
    if (whole == nullptr) continue;
    const at::ScalarType dtype = whole->compute.scalar_type();
    if (dtype != at::kFloat) flat.compute = zeros(dtype);
    return flat;
  }
  return flat;
}

/// Joins the parts of all units that this rank updates, and finds which values of each parameter are
/// among them. The part of a borrowed unit has buffers of its own.
void ShardedValues::own_parameters() {
  owned_.store = &model_.parameters;
  const auto size_of = [&](int64_t unit) {
    const at::Tensor& master = shards_->parts_[static_cast<size_t>(unit)].master;
    return master.defined() ? master.numel() : 0;
  };
  const auto num_units = static_cast<int64_t>(states_.size());
  std::vector<int64_t> offsets;  // of each unit in owned_.flat
  int64_t numel = 0;
  for (int64_t unit = 0; unit < num_units; ++unit) {
    offsets.push_back(numel);
    if (model_.parameters.owns(unit)) numel += size_of(unit);
  }
  owned_.flat = allocated(numel);
  for (int64_t unit = 0; unit < num_units; ++unit) {
    at::Tensor& master = shards_->parts_[static_cast<size_t>(unit)].master;
    if (!master.defined()) continue;
    FlatValues& kept = state(unit).kept;
    kept = model_.parameters.owns(unit)
               ? layers::part_of(owned_.flat, offsets[static_cast<size_t>(unit)], size_of(unit))
               : allocated(size_of(unit));
    kept.master.copy_(master);
    if (!kept.compute.is_same(kept.master)) kept.compute.copy_(kept.master);
  }
  for (layers::Parameter& parameter : model_.parameters.parameters()) {
    UnitState& unit = state(parameter.unit);
    const FlatValues* whole = buffers(parameter.unit);
    if (whole == nullptr) {  // of another stage
      owned_.pieces.push_back({&parameter, 0, 0, 0});
      continue;
    }
    unit.reads_masters |=
        gathers_masters_ || parameter.in_fp32 || whole->compute.is_same(whole->master);
    const int64_t size = model_.parameters.owns(parameter.unit) ? size_of(parameter.unit) : 0;
    const int64_t begin = shards_->mesh().rank(Axis::kDpShard) * size, end = begin + size,
                  first = std::clamp(parameter.offset, begin, end),
                  last = std::clamp(parameter.offset + parameter.numel, begin, end);
    owned_.pieces.push_back({&parameter, first < last ? first - parameter.offset : 0, last - first,
                             offsets[static_cast<size_t>(parameter.unit)] + first - begin});
  }
  for (UnitShards::Parts& parts : shards_->parts_) parts.master.reset();
}

StoredBytes ShardedValues::stored_bytes() const {
  StoredBytes bytes;
  for (const UnitState& of : states_)
    if (of.kept.master.defined() && !trains_on_host()) bytes += stored_bytes_of(of.kept);
  const Sharding& sharding = shards_->sharding();
  const auto add = [&](uint64_t& sum, const at::Tensor& flat) {
    sum += flat.nbytes();
    if (flat.storage().data() == nullptr) bytes.unallocated += flat.nbytes();
  };
  if (shards_->takes_frozen()) bytes.frozen = 0;
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    const at::Tensor& frozen = shards_->parts_[unit].frozen;
    if (frozen.defined() && !sharding.frozen_on_host) *bytes.frozen += frozen.nbytes();
    const FlatValues* flat = buffers(static_cast<int64_t>(unit));
    if (flat == nullptr) continue;
    if (!sharding.releases_gradients()) add(bytes.gradients, flat->grad);
    if (sharding.releases_trained()) continue;
    if (states_[unit].reads_masters) add(bytes.trainable, flat->master);
    if (!flat->compute.is_same(flat->master)) add(bytes.trainable, flat->compute);
  }
  return bytes;
}

bool ShardedValues::is_here(int64_t unit) const {
  const auto i = static_cast<size_t>(unit);
  const bool has_frozen = states_[i].has_frozen || !shards_->parts_[i].frozen.defined();
  return has_frozen && states_[i].version == model_.parameters.version();
}

void ShardedValues::start_gathering(int64_t unit) {
  // Outdated values, which were gathered ahead in vain: Gloo's threads could write them last.
  finish_gathering(unit);
  UnitState& of = state(unit);
  const at::Tensor& frozen = shards_->parts_[static_cast<size_t>(unit)].frozen;
  if (frozen.defined() && !std::exchange(of.has_frozen, true))
    bring(of, model_.units[static_cast<size_t>(unit)].frozen.bytes(), frozen,
          shards_->frozen_parts());
  if (std::exchange(of.version, model_.parameters.version()) == model_.parameters.version()) return;
  const FlatValues* flat = buffers(unit);
  if (flat == nullptr) return;
  tell_reading(unit);
  const int64_t parts = shards_->mesh().sizes().dp_shard;
  if (of.reads_masters) bring(of, flat->master, of.kept.master, parts);
  if (!flat->compute.is_same(flat->master) && !gathers_masters_)
    bring(of, flat->compute, of.kept.compute, parts);
}

/// Starts to gather a unit's values into `flat`. What waits in host memory is copied on a stream of
/// its own first.   @param part of this rank, one of `parts`
void ShardedValues::bring(UnitState& of, const at::Tensor& flat, const at::Tensor& part,
                          int64_t parts) {
  layers::reserve_memory(flat);
  // The values are those that a forward pass may have saved, so autograd must not count a change:
  // `variable_data` has a version counter of its own.
  const at::Tensor whole = flat.variable_data();
  const bool is_on_host = part.device() != whole.device();
  if (!is_on_host && parts == shard_group_.size()) {
    of.gathering.push_back(shard_group_.all_gather_into_async(whole, part));
    return;
  }
  const c10::OptionalStreamGuard guard(stream_of(copies_));
  const at::Tensor own = shards_->part_of(whole, parts);
  own.copy_(part, /*non_blocking=*/true);
  if (parts > 1)
    of.gathering.push_back(shard_group_.all_gather_into_async(whole, own));
  else if (copies_)
    of.gathering.emplace_back(copies_->until_now());
}

void ShardedValues::finish_gathering(int64_t unit) {
  UnitState& of = state(unit);
  if (of.gathering.empty()) return;
  for (StartedCollective& collective : of.gathering) collective.wait();
  of.gathering.clear();
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
  UnitState& of = state(unit);
  if (!is_here(unit)) start_gathering(unit);
  finish_gathering(unit);
  gather_ahead({unit, pass});
  const FlatValues* flat = buffers(unit);
  if (flat == nullptr || pass != UnitPass::kBackward || of.holds_gradients) return;
  if (reduction_.unit == unit) finish_reduction();
  layers::reserve_memory(flat->grad);
  flat->grad.zero_();
  of.holds_gradients = true;
}

void ShardedValues::after(int64_t unit, UnitPass pass) {
  if (pass == UnitPass::kBackward && shards_->sharding().releases_gradients())
    start_reduction(unit);
  release(unit);
}

bool ShardedValues::await_frozen(int64_t unit) {
  const UnitState& of = state(unit);
  if (!shards_->parts_[static_cast<size_t>(unit)].frozen.defined()) return true;
  if (!of.has_frozen) return false;
  for (const StartedCollective& collective : of.gathering) collective.wait_beside();
  return true;
}

void ShardedValues::release(int64_t unit) {
  UnitState& of = state(unit);
  if (std::exchange(of.has_frozen, false))
    layers::release_memory(model_.units[static_cast<size_t>(unit)].frozen.bytes());
  if (!shards_->sharding().releases_trained()) return;
  if (const FlatValues* flat = buffers(unit)) {
    layers::release_memory(flat->master);
    layers::release_memory(flat->compute);
  }
  of.version = 0;
}

void ShardedValues::gradients_ready(int64_t unit) {
  start_reduction(unit);
}

/// Sums the whole gradients of a unit over the ranks of the shards into the part of each.
void ShardedValues::start_reduction(int64_t unit) {
  UnitState& of = state(unit);
  if (!std::exchange(of.holds_gradients, false)) return;
  finish_reduction();
  tell_summing(unit);
  const bool adds = std::exchange(of.is_reduced, true);
  if (trains_on_host()) return send_gradients(unit, adds);
  const at::Tensor& to = of.kept.grad;
  reduction_.unit = unit;
  if (adds) reduction_.sum = at::empty_like(to);
  reduction_.started = shard_group_.reduce_scatter_into_async(
      reduction_.sum.defined() ? reduction_.sum : to, buffers(unit)->grad);
}

/// The same with gradients in host memory: this rank's part of the sum is copied there, on a stream
/// of its own. The device adds what earlier micro-batches left: the host need not wait for it.
void ShardedValues::send_gradients(int64_t unit, bool adds) {
  const at::Tensor &whole = buffers(unit)->grad, &to = state(unit).kept.grad;
  const bool is_divided = to.numel() < whole.numel();
  reduction_.unit = unit;
  reduction_.sum = is_divided ? at::empty(to.sizes(), whole.options()) : whole;
  if (adds) reduction_.earlier = at::empty(to.sizes(), whole.options());
  const c10::OptionalStreamGuard guard(stream_of(sent_gradients_));
  if (is_divided) shard_group_.reduce_scatter_into(reduction_.sum, whole);
  if (adds) {
    reduction_.earlier.copy_(to, /*non_blocking=*/true);
    reduction_.sum.add_(reduction_.earlier);
  }
  to.copy_(reduction_.sum, /*non_blocking=*/true);
  if (sent_gradients_) reduction_.started = StartedCollective(sent_gradients_->until_now());
}

void ShardedValues::finish_reduction() {
  if (reduction_.unit < 0) return;
  reduction_.started.wait();
  if (reduction_.sum.defined() && !trains_on_host())
    state(reduction_.unit).kept.grad.add_(reduction_.sum);
  layers::release_memory(buffers(reduction_.unit)->grad);
  reduction_ = {};
}

void ShardedValues::begin_step() {
  for (UnitState& of : states_) of.is_reduced = false;
}

void ShardedValues::finish_step() {
  // A borrowed unit is not among those whose gradients are said to be ready.
  for (int64_t unit = static_cast<int64_t>(states_.size()) - 1; unit >= 0; --unit)
    if (!model_.parameters.owns(unit)) start_reduction(unit);
  finish_reduction();
  if (sent_gradients_) sent_gradients_->synchronize();  // the optimizer runs on the host
  for (UnitState& of : states_)
    if (!of.is_reduced && of.kept.grad.defined()) of.kept.grad.zero_();
  if (replicas_.size() > 1) sum_over_replicas();
}

void ShardedValues::sum_over_replicas() {
  // Gradients in host memory are summed on the device, unit by unit: NCCL sends from there.
  const bool are_here = owned_.flat.grad.device() == device_;
  if (are_here) replicas_.all_reduce(owned_.flat.grad);
  for (int64_t unit = 0; unit < static_cast<int64_t>(states_.size()); ++unit) {
    const at::Tensor& kept = state(unit).kept.grad;
    if (!kept.defined() || (are_here && model_.parameters.owns(unit))) continue;
    const at::Tensor sum = kept.to(device_);
    replicas_.all_reduce(sum);
    if (!sum.is_same(kept)) kept.copy_(sum);
  }
}

}  // namespace sftrun::parallel
