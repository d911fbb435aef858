#include "sftrun/parallel/unit_shards.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/kernels/host_memory.h"

namespace sftrun::parallel {

using layers::FlatValues;

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
  return flat.narrow(0, parts == 1 ? 0 : mesh_.shard() * size, size);
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
  frozen.read(frozen_parts() == 1 ? 0 : mesh_.shard() * size, part);
  frozen.forget_sources();
  return part;
}

at::Tensor UnitShards::take_masters(layers::Unit& unit, const FlatValues& trained) const {
  const int64_t shards = mesh_.shards();
  const at::Device device =
      sharding_.trained_on_host ? at::Device(at::kCPU) : trained.master.device();
  if (unit.unread.empty())
    return part_of(trained.master, shards)
        .to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  const int64_t size = trained.master.numel() / shards;
  at::Tensor part = at::zeros({size}, at::TensorOptions().dtype(at::kFloat).device(device));
  read_masters(unit.unread, shards == 1 ? 0 : mesh_.shard() * size, part);
  unit.unread.clear();
  return part;
}

UnitShards::Parts& UnitShards::parts(int64_t unit) {
  const auto i = static_cast<size_t>(unit);
  if (parts_.size() <= i) parts_.resize(i + 1);
  return parts_[i];
}

void UnitShards::take(int64_t index, layers::Unit& unit, FlatValues* trained) {
  Parts& parts = this->parts(index);
  if (takes_frozen()) parts.frozen = take_frozen(unit.frozen);
  if (trained == nullptr) return;
  parts.master = take_masters(unit, *trained);
  for (const at::Tensor* flat : {&trained->master, &trained->grad, &trained->compute})
    layers::release_memory(*flat);
}

}  // namespace sftrun::parallel
