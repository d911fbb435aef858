#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "sftrun/core/feature_projector.h"
#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/linear.h"
#include "sftrun/layers/members.h"
#include "sftrun/layers/tower.h"

/// A projector of features that another encoder computed (`sftrun::FeatureProjector`).
namespace sftrun::layers {

struct Projector {
  FeatureProjector spec;
  Linear first, second;
};

/// Without weights. Its tensors are neither quantised nor adapted, so all are members as weights are.
Projector make_projector(FeatureProjector spec);
/// @param projector must stay where it is
std::vector<TowerMembers::WeightMember> members_of(Projector& projector);

/// The features of a micro-batch on their way through a projector.
class ProjectorPass {
 public:
  /// @param features [N, input_width] in the compute dtype   @param projector must outlive the pass
  ProjectorPass(const Projector& projector, at::Tensor features)
      : projector_(projector), features_(std::move(features)) {}

  /// @return [N, text hidden]: rows of the text
  const at::Tensor& forward(TowerKeeps keeps);
  const at::Tensor& rows() const { return rows_; }
  /// Adds to the parameters' gradients. Once, after a forward pass that kept something.   @param grad [N, text hidden]
  void backward(const at::Tensor& grad);

 private:
  at::Tensor run();

  const Projector& projector_;
  at::Tensor features_, rows_;
  at::Tensor graph_;  // rows_ with the graph behind them
  TowerKeeps keeps_ = TowerKeeps::kNothing;
  BatchContext context_;  // there is no dropout
};

}  // namespace sftrun::layers
