#pragma once

#include <array>
#include <compare>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "sftrun/kernels/ops.h"

/// Choice between FlashAttention and cuDNN attention: made once per shape and process, and logged.
namespace sftrun::kernels {

/// FlashAttention's functions, passed in by attention.cpp.
struct FlashAttention {
  AttentionOutput (*forward)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const BatchMetadata& batch, const AttentionShape& shape);
  AttentionGrads (*backward)(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionOutput& saved,
                             const BatchMetadata& batch, const AttentionShape& shape);
};

/// Key of a choice. LibTorch caches cuDNN's plans by the same values, so sizes are not rounded.
struct AttentionClass {
  CudaAttention setting = CudaAttention::kAuto;
  int device = 0;
  at::ScalarType dtype = at::kBFloat16;
  int64_t documents = 0, length = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::array<int64_t, 3> row_strides = {};  ///< of q, k and v
  auto operator<=>(const AttentionClass&) const = default;
};

/// Measurement of both kernels, forward and backward, on one batch.
struct AttentionTrial {
  double flash_ms = 0, cudnn_ms = 0;
  double difference = 0;  ///< largest |cuDNN - FlashAttention| / |FlashAttention|
};

/// Whether FlashAttention's backward pass runs heads of this size on a card: its kernel for 193 to 224
/// channels needs more shared memory than cards with 99 KiB a block have
/// (check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120 of LibTorch's sdp_utils.cpp).
/// @param compute_capability such as 89
bool flash_runs_backward(int64_t head_dim, int compute_capability);

class AttentionChoices {
 public:
  /// Whether to use cuDNN attention: its results agree with FlashAttention's within the dtype's
  /// rounding and, with kMeasure, it is faster. Thread-safe, with one thread for each device.
  /// @param run_trial called only at the first use of a shape; if it throws c10::Error or
  /// std::runtime_error, the shape uses FlashAttention
  bool takes_cudnn(const AttentionClass& shape, const std::function<AttentionTrial()>& run_trial);
  /// Logs, once per reason, why cuDNN attention cannot be used.
  void refuse(const std::string& why);

  /// Largest number of shapes that kMeasure tries. On an H100 the first trial takes 1.5 seconds, for
  /// cuDNN's libraries, and each further one up to half a second, for its plans.
  static constexpr size_t kMaxMeasured = 16;

 private:
  bool decide(const AttentionClass& shape, const std::function<AttentionTrial()>& run_trial);

  std::mutex mutex_;
  std::map<AttentionClass, bool> takes_cudnn_;
  std::set<std::string> refused_;
};

/// Relative difference allowed between the two kernels.
double max_difference(at::ScalarType dtype);

/// Whether this batch uses cuDNN attention. The first use of a shape runs both kernels and
/// synchronises with the device; later uses only look up.
bool takes_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const BatchMetadata& batch, const AttentionShape& shape,
                 const FlashAttention& flash);

}  // namespace sftrun::kernels
