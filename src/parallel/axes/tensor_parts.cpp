#include "tensor_parts.h"

#include <ATen/ATen.h>

#include "sftrun/layers/tensor_ranks.h"

namespace sftrun::parallel {
namespace {

/// Views of the pieces that `is_wanted` accepts; neighbours are one view.
template <typename IsWanted>
std::vector<at::Tensor> views_of(const std::vector<layers::OwnedValues::Piece>& pieces,
                                 const at::Tensor& flat, IsWanted&& is_wanted) {
  std::vector<at::Tensor> views;
  int64_t end = -1;
  for (const layers::OwnedValues::Piece& piece : pieces) {
    if (piece.numel == 0 || !is_wanted(*piece.parameter)) continue;
    const int64_t before = piece.offset == end ? views.back().numel() : 0;
    if (before > 0) views.pop_back();
    views.push_back(flat.narrow(0, piece.offset - before, piece.numel + before));
    end = piece.end_offset();
  }
  return views;
}

}  // namespace

void TensorParts::sum(const std::vector<at::Tensor>& summands) {
  if (summands.empty()) return;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& summand : summands) flat.push_back(summand.flatten());
  const at::Tensor joint = at::cat(flat);
  parts_.all_reduce(joint);
  int64_t first = 0;
  for (const at::Tensor& summand : summands) {
    summand.copy_(joint.narrow(0, first, summand.numel()).view(summand.sizes()));
    first += summand.numel();
  }
}

void TensorParts::sum_gradients(const std::vector<layers::OwnedValues::Piece>& pieces,
                                const at::Tensor& grad) {
  sum(views_of(pieces, grad, [](const layers::Parameter& of) { return of.has_partial_gradient; }));
}

void TensorParts::sum_gradients_of_unit(const layers::ParameterStore& parameters, int64_t unit) {
  std::vector<at::Tensor> summands;
  for (const layers::Parameter& parameter : parameters.parameters())
    if (parameter.unit == unit && parameter.has_partial_gradient)
      summands.push_back(parameter.grad);
  sum(summands);
}

at::Tensor TensorParts::counted(const layers::OwnedValues& owned, const at::Tensor& flat) const {
  if (parts_.rank() == 0) return flat;
  std::vector<at::Tensor> views = views_of(
      owned.pieces, flat, [](const layers::Parameter& of) { return of.slice.has_value(); });
  views.push_back(flat.narrow(0, 0, 0));
  return at::cat(views);
}

at::Tensor TensorParts::joined(const layers::Parameter& parameter, const at::Tensor& part) {
  if (!parameter.slice) return part;
  at::Tensor all = at::zeros(parameter.whole_shape(), part.options());
  layers::put_part(all, *parameter.slice, part);
  // Summed as integers: see `joined_parts`.
  parts_.all_reduce(part.scalar_type() == at::kFloat ? all.view(at::kInt) : all);
  return all;
}

}  // namespace sftrun::parallel
