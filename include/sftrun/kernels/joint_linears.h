#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/kernels/linear.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/unpack_ahead.h"

/// Linears that read the same input, as one product (CUDA), and adapters as part of it on the way
/// back. A GPU's time for a layer of few tokens is that of its launches, and a wide product uses it
/// better than some narrow ones.
namespace sftrun::kernels {

struct JointLinears {
  at::Tensor bias;  ///< [N], N the sum of out_features; or undefined
  /// [spare, K]: the A of each adapter one below another, then rows of zeros. Undefined without
  /// adapters.
  at::Tensor a;
  at::Tensor b;  ///< [N, spare]: scale * B of each, zero elsewhere
  /// [N + spare, K]: each linear's weight is a view of it, and `a`. Undefined of quantised ones.
  at::Tensor weight_and_a;
  UnpackAhead* unpacking = nullptr;  ///< of quantised ones: what has their values
  std::vector<const Linear*> members;

  bool defined() const { return !members.empty(); }
  bool is_quantized() const { return defined() && members.front()->quantized.has_value(); }
  bool has_adapters() const { return a.defined(); }
  int64_t out_features() const;
  int64_t in_features() const { return members.front()->matrix().size(1); }
  /// [N + spare, K]; of quantised ones valid until this is called again for others.
  at::Tensor matrix() const { return unpacking ? unpacking->values(*this) : weight_and_a; }
  /// Columns of room that `joint_input_grad` wants behind a row of dy: the sum of the ranks, to a
  /// multiple of 16.
  int64_t spare() const { return has_adapters() ? a.size(0) : 0; }
};

/// Whether they can be one: matrices that do not train, all dense or all quantised (but to FP8,
/// whose products take codes), with biases all or none, and adapters without dropout and magnitude.
/// One alone has an adapter.
bool can_join(const std::vector<Linear*>& linears);
/// Moves dense weights into one matrix. The linears must not move any more.   @pre can_join
JointLinears join(const std::vector<Linear*>& linears);

/// y [T, N] = x [T, K] times the weights, with biases and adapters. y's rows may lie further apart
/// than they are long.
/// @param low becomes x a^T [T, spare], if not null and there are adapters
void joint_forward(const at::Tensor& x, const JointLinears& joint, at::Tensor* low, at::Tensor y);
/// The same, added to y.
void add_joint_forward(const at::Tensor& x, const JointLinears& joint, at::Tensor* low,
                       at::Tensor y);

struct JointGrads {
  at::Tensor dx;     ///< [T, K]; undefined where it is not wanted
  at::Tensor d_low;  ///< dy b [T, spare]; undefined without adapters
};
/// @param dy [T, N]; what lies between its rows, if that is enough, is overwritten with d_low,
/// which saves a launch: [dy | d_low] [W ; A] is one product
JointGrads joint_input_grad(const at::Tensor& dy, const JointLinears& joint, bool needs_dx);
/// Adds the adapters' gradients.
/// @param x the linears' input, or what `norm` makes that of
/// @param low of the forward pass   @param d_low of `joint_input_grad`
void add_joint_adapter_grads(const at::Tensor& dy, const at::Tensor& x, const NormFactors& norm,
                             const at::Tensor& low, const at::Tensor& d_low,
                             const JointLinears& joint);

/// The adapters' matrices on their way into all `a` and `b` of a model, in one launch.
class JointAdapters {
 public:
  void add(const JointLinears& joint);
  /// After the compute copies have changed.
  void refresh();

 private:
  std::vector<MatrixCopy> copies_;
  at::Tensor table_;  // on the device, made at the first refresh
};

}  // namespace sftrun::kernels
