#include "tensor_parts.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/layers/tensor_ranks.h"

namespace sftrun::parallel {
namespace {

/// The elements of a divided parameter in those ranges of its slice that `is_wanted` accepts.
template <typename IsWanted>
std::vector<IndexRange> elements_of(const layers::Parameter& parameter, IsWanted&& is_wanted) {
  std::vector<IndexRange> elements;
  int64_t begin = 0;
  for (const IndexRange& range : parameter.slice->ranges) {
    SFTRUN_CHECK(range.copies == 1 || parameter.slice->dim == 0);  // rows follow each other
    const int64_t count = parameter.numel / parameter.slice->size() * range.count;
    if (is_wanted(range)) elements.push_back({begin, count});
    begin += count;
  }
  return elements;
}

/// Views of those elements of each parameter, `wanted_of(parameter)`, that are in a piece; neighbours
/// are one view.
template <typename WantedOf>
std::vector<at::Tensor> views_of(const std::vector<layers::OwnedValues::Piece>& pieces,
                                 const at::Tensor& flat, WantedOf&& wanted_of) {
  std::vector<at::Tensor> views;
  int64_t end = -1;
  for (const layers::OwnedValues::Piece& piece : pieces) {
    for (const IndexRange& elements : wanted_of(*piece.parameter)) {
      const int64_t first = std::max(elements.begin, piece.begin),
                    count = std::min(elements.end(), piece.begin + piece.numel) - first;
      if (count <= 0) continue;
      const int64_t offset = piece.offset + first - piece.begin,
                    before = offset == end ? views.back().numel() : 0;
      if (before > 0) views.pop_back();
      views.push_back(flat.narrow(0, offset - before, count + before));
      end = offset + count;
    }
  }
  return views;
}

void sum(const std::vector<at::Tensor>& summands, Group& ranks) {
  if (summands.empty()) return;
  const at::Tensor joint = at::cat(summands);
  ranks.all_reduce(joint);
  int64_t first = 0;
  for (const at::Tensor& summand : summands) {
    summand.copy_(joint.narrow(0, first, summand.numel()));
    first += summand.numel();
  }
}

}  // namespace

TensorParts::TensorParts(MeshGroups& groups, const layers::ParameterStore& parameters)
    : parts_(groups.along({Axis::kTp})) {
  sharers_.emplace(parts_.size(), parts_);
  for (const layers::Parameter& parameter : parameters.parameters()) {
    if (!parameter.slice) continue;
    for (const IndexRange& range : parameter.slice->ranges)
      if (range.copies > 1 && !sharers_.contains(range.copies))
        sharers_.emplace(range.copies,
                         groups.neighbours(Axis::kTp, static_cast<int>(range.copies)));
  }
}

/// The elements of a parameter of whose gradient `num_ranks` ranks have a summand each.
std::vector<IndexRange> TensorParts::summands_of(const layers::Parameter& parameter,
                                                 int64_t num_ranks) const {
  if (parameter.slice)
    return elements_of(parameter,
                       [&](const IndexRange& range) { return range.copies == num_ranks; });
  if (parameter.has_partial_gradient && num_ranks == parts_.size()) return {{0, parameter.numel}};
  return {};
}

void TensorParts::sum_gradients(const std::vector<layers::OwnedValues::Piece>& pieces,
                                const at::Tensor& grad) {
  for (auto& [num_ranks, ranks] : sharers_) {
    const auto wanted_of = [this, count = num_ranks](const layers::Parameter& parameter) {
      return summands_of(parameter, count);
    };
    sum(views_of(pieces, grad, wanted_of), ranks);
  }
}

void TensorParts::sum_gradients_of_unit(const layers::ParameterStore& parameters, int64_t unit) {
  for (auto& [num_ranks, ranks] : sharers_) {
    std::vector<at::Tensor> summands;
    for (const layers::Parameter& parameter : parameters.parameters()) {
      if (parameter.unit != unit) continue;
      for (const IndexRange& elements : summands_of(parameter, num_ranks))
        summands.push_back(parameter.grad.flatten().narrow(0, elements.begin, elements.count));
    }
    sum(summands, ranks);
  }
}

at::Tensor TensorParts::counted(const layers::OwnedValues& owned, const at::Tensor& flat) const {
  if (parts_.rank() == 0) return flat;
  std::vector<at::Tensor> views = views_of(
      owned.pieces, flat, [](const layers::Parameter& parameter) -> std::vector<IndexRange> {
        if (!parameter.slice) return {};
        return elements_of(parameter, [](const IndexRange& range) { return range.copy == 0; });
      });
  views.push_back(flat.narrow(0, 0, 0));
  return at::cat(views);
}

at::Tensor TensorParts::joined(const layers::Parameter& parameter, const at::Tensor& part) {
  if (!parameter.slice) return part;
  at::Tensor all = at::zeros(parameter.whole_shape(), part.options());
  layers::put_part(all, *parameter.slice, part);
  for (const IndexRange& range : parameter.slice->ranges)
    if (range.copy > 0) all.narrow(parameter.slice->dim, range.begin, range.count).zero_();
  // Summed as integers: see `joined_parts`.
  parts_.all_reduce(part.scalar_type() == at::kFloat ? all.view(at::kInt) : all);
  return all;
}

}  // namespace sftrun::parallel
