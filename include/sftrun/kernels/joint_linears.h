#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/kernels/linear.h"

/// Linears that read the same input, as one product (CUDA). A GPU's time for a layer of few tokens
/// is that of its launches, and a wide product uses it better than some narrow ones.
namespace sftrun::kernels {

struct JointLinears {
  at::Tensor weight;  ///< [sum of out_features, in_features]; each linear's weight is a view of it
  at::Tensor bias;    ///< [sum of out_features], or undefined
  at::Tensor a;       ///< [sum of ranks, in_features]; undefined without adapters
  at::Tensor b;       ///< [sum of out_features, sum of ranks]: scale * B of each, zero elsewhere
  std::vector<const Linear*> members;

  bool defined() const { return weight.defined(); }
  bool has_adapters() const { return a.defined(); }
};

/// Whether they can be one: two or more dense matrices that do not train, with biases all or none,
/// and adapters without dropout and magnitude.
bool can_join(const std::vector<Linear*>& linears);
/// Moves their weights into one matrix. The linears must not move any more.   @pre can_join
JointLinears join(const std::vector<Linear*>& linears);

/// x [T, in] -> [T, sum of out].   @param low x a^T [T, sum of ranks], if not null and there are
/// adapters
at::Tensor joint_forward(const at::Tensor& x, const JointLinears& joint, at::Tensor* low);
/// Adds the adapters' gradients; returns that of x, undefined when !needs_dx.
/// @param dy [T, sum of out]   @param x read only where there are adapters
at::Tensor joint_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& low,
                          const JointLinears& joint, bool needs_dx);

/// The adapters' matrices on their way into all `a` and `b` of a model, in one launch.
class JointAdapters {
 public:
  void add(const JointLinears& joint);
  /// After the compute copies have changed.
  void refresh() const;

 private:
  struct Copy {
    at::Tensor from, to;
    double scale;
  };
  std::vector<Copy> copies_;
  mutable at::Tensor table_;  // on the device, made at the first refresh
};

}  // namespace sftrun::kernels
