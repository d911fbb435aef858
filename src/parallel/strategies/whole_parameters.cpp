#include "whole_parameters.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"
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

at::Tensor Strategy::master_of(const layers::Parameter& parameter) {
  for (const layers::OwnedValues::Piece& piece : owned().pieces) {
    if (piece.parameter != &parameter) continue;
    return whole(owned().flat.master.narrow(0, piece.offset, piece.numel)).view(parameter.shape);
  }
  invariant_failed(__FILE__, __LINE__, "a parameter of the strategy's store");
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, Communicator& comm,
                                        const DistributedModel& model) {
  switch (options.strategy) {
    case config::Strategy::kSingle:
      SFTRUN_CHECK_EQ(comm.world_size(), 1);
      return std::make_unique<SingleStrategy>(model);
    case config::Strategy::kDdp:
      return std::make_unique<DdpStrategy>(options, comm, model);
    case config::Strategy::kAuto:
      break;
  }
  invariant_failed(__FILE__, __LINE__, "a resolved strategy");
}

}  // namespace sftrun::parallel
