#include "sftrun/layers/projector.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "sftrun/core/error.h"
#include "tower/tower_ops.h"

namespace sftrun::layers {

Projector make_projector(FeatureProjector spec) {
  Projector projector;
  projector.first.name = spec.first();
  projector.second.name = spec.second();
  projector.spec = std::move(spec);
  return projector;
}

std::vector<TowerMembers::WeightMember> members_of(Projector& projector) {
  std::vector<TowerMembers::WeightMember> members;
  for (Linear* linear : {&projector.first, &projector.second}) {
    members.push_back({linear->name + ".weight", {&linear->weight, &linear->weight_parameter}});
    members.push_back({linear->name + ".bias", {&linear->bias, &linear->bias_parameter}});
  }
  return members;
}

at::Tensor ProjectorPass::run() {
  const at::Tensor hidden = tower_linears(features_, LinearGroup{&projector_.first}, context_)[0];
  return tower_linears(at::gelu(hidden), LinearGroup{&projector_.second}, context_)[0];
}

const at::Tensor& ProjectorPass::forward(TowerKeeps keeps) {
  const at::AutoGradMode grad_mode(keeps == TowerKeeps::kGraph);
  keeps_ = keeps;
  const at::Tensor rows = run();
  if (keeps == TowerKeeps::kGraph) graph_ = rows;
  rows_ = rows.detach();
  return rows_;
}

void ProjectorPass::backward(const at::Tensor& grad) {
  SFTRUN_CHECK(keeps_ != TowerKeeps::kNothing);
  const at::AutoGradMode grad_mode(true);
  const at::Tensor rows = graph_.defined() ? std::exchange(graph_, {}) : run();
  if (rows.requires_grad()) torch::autograd::backward({rows}, {grad});
}

}  // namespace sftrun::layers
