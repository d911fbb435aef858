#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "sftrun/kernels/copy_matrices.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/layers/dequant_prefetcher.h"
#include "sftrun/layers/linear.h"
#include "sftrun/layers/unit.h"

/// Linear layers with the same input, computed as one matrix product together with their adapters
/// (CUDA). For few tokens kernel launches dominate a layer's time, and one wide product uses the
/// GPU better than several narrow ones.
namespace sftrun::layers {

struct JointLinears {
  /// Of the model (unit.h): its weights may be in memory only while it is used.
  int64_t unit = 0;
  at::Tensor bias;  ///< [N], N = sum of out_features: the linears' are views of it; or undefined
  /// [ranks, K]: the A matrices stacked by rows, zero-padded. Undefined without adapters.
  at::Tensor a;
  at::Tensor b;         ///< [N, ranks]: block-diagonal, scale * B of each adapter
  at::Tensor arrivals;  ///< counters of `kernels::add_adapter_grads_`; undefined without adapters
  /// [N + ranks, K + ranks] = [W | b ; a | 0]: each linear's weight is a view of it. Undefined for
  /// quantised weights.
  at::Tensor whole;
  /// FP8 base weights, if products use the codes directly; the linears' weights are views of it.
  std::optional<kernels::QuantizedMatrix> fp8;
  at::Tensor ones;                          ///< [1, K] fp32: scales of the transposed codes
  DequantPrefetcher* prefetcher = nullptr;  ///< set for quantised weights, FP8 included
  std::vector<const Linear*> members;

  bool defined() const { return !members.empty(); }
  bool is_quantized() const { return defined() && members.front()->quantized.has_value(); }
  bool has_adapters() const { return a.defined(); }
  int64_t out_features() const;
  int64_t in_features() const { return members.front()->matrix().size(1); }
  // With quantised weights valid until `release`; not available for FP8.
  at::Tensor weights() const;        ///< W [N, K]
  at::Tensor weights_and_b() const;  ///< [W | scale B] [N, K + ranks]
  at::Tensor weights_and_a() const;  ///< [W ; A] [N + ranks, K]
  /// Call when the product that reads the matrix has been launched.
  void release() const {
    if (prefetcher) prefetcher->done();
  }
  int64_t ranks() const { return has_adapters() ? a.size(0) : 0; }  ///< a multiple of 16
  /// The rows of `a` including their padding columns, [ranks, K + ranks], contiguous.
  /// @pre has adapters
  at::Tensor rows_of_a() const;
  /// Unused columns that `joint_forward` needs after each row of x, and `joint_input_grad` after
  /// each row of dy, to use one product instead of two.
  int64_t spare() const { return fp8 ? 0 : ranks(); }

 private:
  at::Tensor part(JointPart which) const;
};

/// Whether these linears can be joined. Required: frozen weights and biases, with a bias for all or
/// for none; all dense, all FP8, or all quantised otherwise; adapters without dropout, DoRA
/// magnitude or fp32 compute copy. A single linear qualifies only with an adapter.
bool can_join(const std::vector<Linear*>& linears);
/// Moves dense weights or FP8 codes, and biases, into one matrix. The linears must not be moved in
/// memory afterwards.   @pre can_join
/// @param unread weights without memory; what they are moved into takes their place
JointLinears join(const std::vector<Linear*>& linears, UnreadStorages& unread);

/// y = x W^T + bias + x a^T b^T: x [T, K] -> [T, N].
/// @param x if its row stride leaves `JointLinears::spare` unused columns, these are overwritten
/// with x a^T, and [x | x a^T] [W | scale B]^T is one product
/// @param spare unused columns to allocate after each row of the result
/// @param low receives x a^T [T, ranks] if there are adapters; null: not wanted
/// @param adapters false: y = x W^T + bias
at::Tensor joint_forward(const at::Tensor& x, const JointLinears& joint, int64_t spare,
                         at::Tensor* low, bool adapters = true);
/// y += x W^T + bias + x a^T b^T, or without the last term.
void add_joint_forward(const at::Tensor& x, const JointLinears& joint, at::Tensor* low,
                       at::Tensor y, bool adapters = true);

struct JointGrads {
  at::Tensor dx;     ///< [T, K]; undefined when !needs_dx
  at::Tensor d_low;  ///< dy b [T, ranks]; undefined without adapters
};
/// @param dy [T, N]; if its row stride leaves `JointLinears::spare` unused columns, these are
/// overwritten with d_low, and [dy | d_low] [W ; A] is one product
JointGrads joint_input_grad(const at::Tensor& dy, const JointLinears& joint, bool needs_dx);
/// Adds the adapters' gradients.
/// @param x the input of the linears, or the input of the RMSNorm before them with its `norm`
/// @param low x a^T of the forward pass   @param d_low of `joint_input_grad`
void add_joint_adapter_grads(const at::Tensor& dy, const at::Tensor& x,
                             const kernels::NormFactors& norm, const at::Tensor& low,
                             const at::Tensor& d_low, const JointLinears& joint);

/// Copies the adapters' A and scale * B into the `a` and `b` of joint linears in one launch.
class JointAdapters {
 public:
  /// @param joint must not be moved in memory afterwards
  void add(const JointLinears& joint);
  /// Call after the adapters' compute copies, or the memory of either, have changed.
  /// @pre memory that moves after the first call is one storage for all adapters, and one for all
  /// joint linears
  void refresh();

 private:
  std::vector<kernels::MatrixCopy> copies() const;
  std::vector<const JointLinears*> joints_;
  at::Tensor table_;           // on the device, built by the first refresh
  kernels::MatrixCopy first_;  // of the table
  int64_t from_ = 0, to_ = 0;  // addresses of its matrices
};

}  // namespace sftrun::layers
