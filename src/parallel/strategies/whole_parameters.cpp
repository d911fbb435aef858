#include "whole_parameters.h"

#include <ATen/ATen.h>

#include "sftrun/kernels/ops.h"

namespace sftrun::parallel {

std::vector<std::pair<int64_t, int64_t>> owned_unit_ranges(const DistributedModel& model) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t unit = 0; unit < static_cast<int64_t>(model.units.size()); ++unit) {
    ranges.push_back(model.parameters.owns(unit) ? model.parameters.unit_range(unit)
                                                 : std::pair<int64_t, int64_t>(0, 0));
  }
  return ranges;
}

SingleStrategy::SingleStrategy(const DistributedModel& model, const Mesh& mesh)
    : mesh_(mesh), owned_(model.parameters) {}

void SingleStrategy::begin_step() {
  owned_.flat.grad.zero_();
}

at::Tensor SingleStrategy::squares(const at::Tensor& owned) {
  return kernels::sum_of_squares(owned);
}

DdpStrategy::DdpStrategy(const StrategyOptions& options, Communicator& comm,
                         const DistributedModel& model)
    : SingleStrategy(model, Mesh::replicated(comm.world_size(), comm.rank())),
      overlaps_reduction_(options.overlaps_reduction && comm.world_size() > 1),
      reducer_(comm.world(), owned().flat.grad, owned_unit_ranges(model), options.bucket_cap_bytes,
               options.gradients_sent_as) {}

}  // namespace sftrun::parallel
