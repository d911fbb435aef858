#include "sftrun/parallel/strategy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "pipeline.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/ops.h"
#include "sharded.h"
#include "tensor_parallel.h"
#include "whole_parameters.h"

namespace sftrun::parallel {
namespace {

const layers::OwnedValues::Piece& piece_of(const layers::OwnedValues& owned,
                                           const layers::Parameter& parameter) {
  for (const layers::OwnedValues::Piece& piece : owned.pieces)
    if (piece.parameter == &parameter) return piece;
  invariant_failed(__FILE__, __LINE__, "a parameter of the strategy's store");
}

}  // namespace

at::Tensor Strategy::master_of(const layers::Parameter& parameter) {
  const layers::OwnedValues::Piece& piece = piece_of(owned(), parameter);
  const at::Tensor own = owned().flat.master.narrow(0, piece.offset, piece.numel);
  return joined(parameter, whole(own, piece.begin, parameter.numel).view(parameter.shape));
}

StoredBytes Strategy::stored_bytes() const {
  const layers::FlatValues& flat = owned().flat;
  const uint64_t copy = flat.compute.is_same(flat.master) ? 0 : flat.compute.nbytes();
  return {.frozen = std::nullopt,
          .trainable = flat.master.nbytes() + copy,
          .gradients = flat.grad.nbytes()};
}

void Strategy::assign(const layers::Parameter& parameter, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const layers::OwnedValues::Piece& piece = piece_of(owned(), parameter);
  const layers::FlatValues& flat = owned().flat;
  const at::Tensor master = flat.master.narrow(0, piece.offset, piece.numel);
  master.copy_(parameter.part_of(values).flatten().narrow(0, piece.begin, piece.numel));
  if (!flat.compute.is_same(flat.master))
    flat.compute.narrow(0, piece.offset, piece.numel).copy_(master);
  owned().store->compute_changed();
}

at::Tensor squares_over(const at::Tensor& owned, Group& group, at::Device device) {
  const at::Tensor sum = kernels::sum_of_squares(owned).to(device);
  group.all_reduce(sum);
  return sum;
}

bool holds_on_all(Communicator& comm, bool holds_here) {
  const auto ranks = comm.all_gather({holds_here ? 1.0 : 0.0});
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank[0] != 0; });
}

at::Tensor joined_parts(const at::Tensor& part, int64_t begin, int64_t numel, Group& group) {
  const at::Tensor all = at::zeros({numel}, part.options());
  all.narrow(0, begin, part.numel()).copy_(part);
  // Summed as integers: adding zeros then keeps every bit, of negative zeros and NaN, too.
  group.all_reduce(part.scalar_type() == at::kFloat ? all.view(at::kInt) : all);
  return all;
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, Communicator& comm,
                                        const DistributedModel& model,
                                        std::unique_ptr<UnitShards> shards) {
  SFTRUN_CHECK(shards != nullptr || !config::is_sharded(options.strategy));
  if (shards != nullptr) {
    return std::make_unique<ShardedStrategy>(options, comm, model, std::move(shards));
  }
  switch (options.strategy) {
    case config::Strategy::kSingle:
      SFTRUN_CHECK_EQ(comm.world_size(), 1);
      return std::make_unique<SingleStrategy>(model);
    case config::Strategy::kDdp:
      return std::make_unique<DdpStrategy>(options, comm, model);
    case config::Strategy::kPipeline:
    case config::Strategy::kDeviceMap:
      return std::make_unique<PipelineStrategy>(options, comm, model);
    case config::Strategy::kTensor:
      return std::make_unique<TensorStrategy>(options, comm, model);
    default:
      invariant_failed(__FILE__, __LINE__, "a resolved strategy");
  }
}

}  // namespace sftrun::parallel
