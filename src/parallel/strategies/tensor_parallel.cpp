#include "tensor_parallel.h"

#include <ATen/ATen.h>

#include "own_group.h"
#include "sftrun/core/error.h"
#include "sftrun/layers/tensor_ranks.h"

namespace sftrun::parallel {
namespace {

Mesh mesh_with_parts(const StrategyOptions& options, const Communicator& comm) {
  const int parts = options.tensor_ranks.size();
  SFTRUN_CHECK_EQ(comm.world_size() % parts, 0);
  return {{.dp_replicate = comm.world_size() / parts, .tp = parts}, comm.rank()};
}

Group make_replica_group(Communicator& comm, const Mesh& mesh) {
  return make_own_group(comm, "part", mesh.sizes().tp, mesh.tp_rank(),
                        [&](int part) { return mesh.ranks_with_part(part); });
}

}  // namespace

TensorStrategy::TensorStrategy(const StrategyOptions& options, Communicator& comm,
                               const DistributedModel& model)
    : SingleStrategy(model, mesh_with_parts(options, comm)),
      comm_(comm),
      parts_(options.tensor_ranks),
      replicas_(make_replica_group(comm, mesh())),
      reducer_(replicas_, owned().flat.grad, owned_unit_ranges(model), options.bucket_cap_bytes,
               options.gradients_sent_as) {
  for (const layers::OwnedValues::Piece& piece : owned().pieces) {
    if (piece.parameter->has_partial_gradient) append(summands_, piece);
    if (piece.parameter->slice) append(divided_, piece);
  }
}

/// Merges neighbours.
void TensorStrategy::append(std::vector<Range>& ranges, const layers::OwnedValues::Piece& piece) {
  if (!ranges.empty() && ranges.back().begin + ranges.back().count == piece.offset)
    ranges.back().count += piece.numel;
  else
    ranges.push_back({piece.offset, piece.numel});
}

void TensorStrategy::finish_step() {
  reducer_.finish();
  if (summands_.empty()) return;
  const at::Tensor& grad = owned().flat.grad;
  std::vector<at::Tensor> views;
  for (const Range& range : summands_) views.push_back(grad.narrow(0, range.begin, range.count));
  const at::Tensor joint = at::cat(views);  // one message
  parts_.all_reduce(joint);
  int64_t first = 0;
  for (const at::Tensor& view : views) {
    view.copy_(joint.narrow(0, first, view.numel()));
    first += view.numel();
  }
}

/// Values that all parts have are counted by the first one.
at::Tensor TensorStrategy::squares(const at::Tensor& of) {
  if (mesh().tp_rank() == 0) return squares_over(of, parts_, of.device());
  std::vector<at::Tensor> views = {of.narrow(0, 0, 0)};
  for (const Range& range : divided_) views.push_back(of.narrow(0, range.begin, range.count));
  return squares_over(at::cat(views), parts_, of.device());
}

bool TensorStrategy::holds_everywhere(bool holds_here) {
  return holds_on_all(comm_, holds_here);
}

at::Tensor TensorStrategy::joined(const layers::Parameter& parameter, const at::Tensor& part) {
  if (!parameter.slice) return part;
  at::Tensor all = at::zeros(parameter.whole_shape(), part.options());
  layers::put_part(all, *parameter.slice, part);
  // Summed as integers: see `joined_parts`.
  parts_.all_reduce(part.scalar_type() == at::kFloat ? all.view(at::kInt) : all);
  return all;
}

}  // namespace sftrun::parallel
