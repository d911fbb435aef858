#include "whole_parameters.h"

#include <ATen/ATen.h>

#include "sftrun/kernels/ops.h"

namespace sftrun::parallel {
namespace {

std::vector<std::pair<int64_t, int64_t>> unit_ranges(const DistributedModel& model) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (size_t unit = 0; unit < model.units.size(); ++unit)
    ranges.push_back(model.parameters.unit_range(static_cast<int64_t>(unit)));
  return ranges;
}

}  // namespace

SingleStrategy::SingleStrategy(const DistributedModel& model, int world_size, int rank)
    : mesh_(Mesh::replicated(world_size, rank)), owned_(model.parameters) {}

void SingleStrategy::begin_step() {
  owned_.flat.grad.zero_();
}

at::Tensor SingleStrategy::squares(const at::Tensor& owned) {
  return kernels::sum_of_squares(owned);
}

DdpStrategy::DdpStrategy(const StrategyOptions& options, Communicator& comm,
                         const DistributedModel& model)
    : SingleStrategy(model, comm.world_size(), comm.rank()),
      overlaps_reduction_(options.overlaps_reduction && comm.world_size() > 1),
      reducer_(comm.world(), owned().flat.grad, unit_ranges(model), options.bucket_cap_bytes) {}

}  // namespace sftrun::parallel
