#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/kernels/linear.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/unpack_ahead.h"

/// Linears that read the same input, as one product (CUDA), and adapters as part of it. A GPU's
/// time for a layer of few tokens is that of its launches, and a wide product uses it better than
/// some narrow ones.
namespace sftrun::kernels {

struct JointLinears {
  at::Tensor bias;  ///< [N], N the sum of out_features; or undefined
  /// [ranks, K]: the A of each adapter one below another, then rows of zeros. Undefined without
  /// adapters.
  at::Tensor a;
  at::Tensor b;  ///< [N, ranks]: scale * B of each, zero elsewhere
  /// [N + ranks, K + ranks]: each linear's weight is a view of it, `b` beside them and `a` below.
  /// Undefined of quantised ones.
  at::Tensor whole;
  /// Of bases in FP8, whose products take codes: each linear's are views of it.
  std::optional<QuantizedMatrix> fp8;
  at::Tensor ones;                   ///< [1, K] fp32: factors of the codes when they are turned
  UnpackAhead* unpacking = nullptr;  ///< of quantised ones: what has their values, or turned codes
  std::vector<const Linear*> members;

  bool defined() const { return !members.empty(); }
  bool is_quantized() const { return defined() && members.front()->quantized.has_value(); }
  bool has_adapters() const { return a.defined(); }
  int64_t out_features() const;
  int64_t in_features() const { return members.front()->matrix().size(1); }
  // Of quantised ones valid until `release`; not of FP8.
  at::Tensor weights() const;        ///< W [N, K]
  at::Tensor weights_and_b() const;  ///< [W | scale B] [N, K + ranks]
  at::Tensor weights_and_a() const;  ///< [W ; A] [N + ranks, K]
  /// When the product that reads the matrix is queued.
  void release() const {
    if (unpacking) unpacking->done();
  }
  int64_t ranks() const { return has_adapters() ? a.size(0) : 0; }  ///< a multiple of 16
  /// a's rows with what is behind them, [ranks, K + ranks]: contiguous.   @pre has adapters
  at::Tensor rows_of_a() const;
  /// Columns of room that `joint_forward` wants behind a row of x, and `joint_input_grad` behind
  /// one of dy.
  int64_t spare() const { return fp8 ? 0 : ranks(); }

 private:
  at::Tensor part(JointPart which) const;
};

/// Whether they can be one: matrices that do not train, all dense, all in FP8 or all quantised
/// otherwise, with biases all or none, and adapters without dropout and magnitude. One alone has an
/// adapter.
bool can_join(const std::vector<Linear*>& linears);
/// Moves dense weights, and codes in FP8, into one matrix. The linears must not move any more. @pre
/// can_join
JointLinears join(const std::vector<Linear*>& linears);

/// x [T, K] times the weights, with biases and adapters: [T, N].
/// @param x what lies between its rows, if that is enough, is overwritten with x a^T: [x | x a^T]
/// [W | scale B]^T is one product, where a result that is read and written again would be two
/// @param spare columns of room behind each row of the result
/// @param low becomes x a^T [T, ranks], if not null and there are adapters
at::Tensor joint_forward(const at::Tensor& x, const JointLinears& joint, int64_t spare,
                         at::Tensor* low);
/// The same, added to y.
void add_joint_forward(const at::Tensor& x, const JointLinears& joint, at::Tensor* low,
                       at::Tensor y);

struct JointGrads {
  at::Tensor dx;     ///< [T, K]; undefined where it is not wanted
  at::Tensor d_low;  ///< dy b [T, ranks]; undefined without adapters
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
