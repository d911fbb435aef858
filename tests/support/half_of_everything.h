#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/parallel/strategy.h"

namespace sftrun::test {

/// A sharded strategy in as few lines as the interface allows: of every storage, frozen and
/// trainable, each of n ranks keeps one n-th. A unit is gathered before a pass and released after
/// it; gradients are reduce-scattered when they are complete.   @pre fp32, buffers per unit
class HalfOfEverything final : public parallel::Strategy {
 public:
  HalfOfEverything(parallel::Communicator& comm, const parallel::DistributedModel& model)
      : comm_(comm), mesh_({.dp_shard = comm.world_size()}, comm.rank()), model_(model) {
    std::vector<at::Tensor> masters;
    int64_t offset = 0;
    owned_.store = &model.parameters;
    auto parameter = model.parameters.parameters().begin();
    for (size_t i = 0; i < model.units.size(); ++i) {
      layers::FrozenStorage& frozen = model.units[i].frozen;
      frozen.place(comm.world_size());
      shards_.push_back({.offset = offset});
      if (frozen.bytes().defined()) {
        const int64_t part = frozen.bytes().numel() / comm.world_size();
        shards_[i].frozen = at::empty({part}, at::kByte);
        frozen.read(comm.rank() * part, shards_[i].frozen);
        frozen.forget_sources();
      }
      layers::FlatValues* flat = buffers(i);
      if (flat == nullptr) continue;
      masters.push_back(part_of(flat->master).clone());
      const int64_t size = masters.back().numel(), begin = comm.rank() * size, end = begin + size;
      for (; parameter != model.parameters.parameters().end() &&
             parameter->unit == static_cast<int64_t>(i);
           ++parameter) {
        const int64_t first = std::clamp(parameter->offset, begin, end),
                      last = std::clamp(parameter->offset + parameter->numel, begin, end);
        owned_.pieces.push_back({&*parameter, first < last ? first - parameter->offset : 0,
                                 last - first, offset + first - begin});
      }
      shards_[i].size = size;
      offset += size;
      layers::release_memory(flat->master);
      layers::release_memory(flat->grad);
    }
    owned_.flat.master = owned_.flat.compute = at::cat(masters);
    owned_.flat.grad = at::zeros_like(owned_.flat.master);
  }

  std::string name() const override { return "half"; }
  const parallel::Mesh& mesh() const override { return mesh_; }
  const layers::OwnedValues& owned() const override { return owned_; }
  void begin_step() override { owned_.flat.grad.zero_(); }
  void finish_step() override {}
  bool communicates_in_passes() const override { return true; }
  bool divides_parameters() const override { return true; }

  void before(int64_t unit, layers::UnitPass pass) override {
    const auto i = static_cast<size_t>(unit);
    if (shards_[i].frozen.defined()) gather(model_.units[i].frozen.bytes(), shards_[i].frozen);
    layers::FlatValues* flat = buffers(i);
    if (flat == nullptr) return;
    gather(flat->master, own(owned_.flat.master, i));
    if (pass != layers::UnitPass::kBackward || shards_[i].accumulates) return;
    layers::reserve_memory(flat->grad);
    flat->grad.zero_();
    shards_[i].accumulates = true;
  }

  void after(int64_t unit, layers::UnitPass) override {
    const auto i = static_cast<size_t>(unit);
    if (shards_[i].frozen.defined()) layers::release_memory(model_.units[i].frozen.bytes());
    if (buffers(i) != nullptr) layers::release_memory(buffers(i)->master);
  }

  void gradients_ready(int64_t unit) override {
    const auto i = static_cast<size_t>(unit);
    if (!std::exchange(shards_[i].accumulates, false)) return;
    comm_.world().reduce_scatter_into(own(owned_.flat.grad, i), buffers(i)->grad);
    layers::release_memory(buffers(i)->grad);
  }

  at::Tensor squares(const at::Tensor& owned) override {
    const at::Tensor sum = kernels::sum_of_squares(owned);
    comm_.world().all_reduce(sum);
    return sum;
  }
  bool holds_everywhere(bool holds_here) override {
    const auto ranks = comm_.all_gather({holds_here ? 1.0 : 0.0});
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank[0] != 0; });
  }
  at::Tensor whole(const at::Tensor& part, int64_t begin, int64_t numel) override {
    return parallel::joined_parts(part, begin, numel, comm_.world());
  }

 private:
  struct Shard {
    at::Tensor frozen;             // bytes of this rank; undefined: the unit has none
    int64_t offset = 0, size = 0;  // elements of owned_.flat
    bool accumulates = false;      // whole gradients are in memory until the end of the step
  };
  layers::FlatValues* buffers(size_t unit) const {
    return model_.parameters.buffers_of(static_cast<int64_t>(unit));
  }
  at::Tensor part_of(const at::Tensor& flat) const {
    return flat.chunk(mesh_.world_size())[mesh_.rank()];
  }
  at::Tensor own(const at::Tensor& flat, size_t unit) const {
    return flat.narrow(0, shards_[unit].offset, shards_[unit].size);
  }
  void gather(const at::Tensor& into, const at::Tensor& shard) {
    layers::reserve_memory(into);
    comm_.world().all_gather_into(into, shard);
  }

  parallel::Communicator& comm_;
  parallel::Mesh mesh_;
  parallel::DistributedModel model_;
  layers::OwnedValues owned_;
  std::vector<Shard> shards_;  // of each unit
};

}  // namespace sftrun::test
