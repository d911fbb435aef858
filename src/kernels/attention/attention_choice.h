#pragma once

#include <array>
#include <compare>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "sftrun/kernels/ops.h"

/// FlashAttention or cuDNN's kernel: chosen once for each shape of a process, and logged.
namespace sftrun::kernels {

/// FlashAttention's two functions, as `attention.cpp` has them.
struct FlashAttention {
  AttentionOutput (*forward)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const BatchContext& batch, const AttentionShape& shape);
  AttentionGrads (*backward)(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionOutput& saved,
                             const BatchContext& batch, const AttentionShape& shape);
};

/// What a choice is made for: what LibTorch finds cuDNN's plans by, so sizes are not rounded.
struct AttentionClass {
  CudaAttention setting = CudaAttention::kFlash;
  at::ScalarType dtype = at::kBFloat16;
  int64_t documents = 0, length = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::array<int64_t, 3> row_strides = {};  ///< of q, k and v
  auto operator<=>(const AttentionClass&) const = default;
};

/// Both kernels, forward and backward, of one batch.
struct AttentionTrial {
  double flash_ms = 0, cudnn_ms = 0;
  double difference = 0;  ///< |cuDNN - FlashAttention| / |FlashAttention|, of the worst result
};

class AttentionChoices {
 public:
  /// cuDNN's kernel is taken where its results are FlashAttention's to the dtype's rounding and,
  /// with kMeasure, where it is faster. Thread-safe.
  /// @param run_trial called at the first use of a class only; an error of LibTorch leaves the
  /// class to FlashAttention
  bool takes_cudnn(const AttentionClass& shape, const std::function<AttentionTrial()>& run_trial);
  /// Logs, once for each reason, why cuDNN's kernel cannot be used.
  void refuse(const std::string& why);

  /// Classes that kMeasure tries; a trial takes about a second, most of it cuDNN's plans.
  static constexpr size_t kMostMeasured = 16;

 private:
  bool decide(const AttentionClass& shape, const std::function<AttentionTrial()>& run_trial);

  std::mutex mutex_;
  std::map<AttentionClass, bool> takes_cudnn_;
  std::set<std::string> refused_;
};

/// Relative difference that is allowed between the two kernels.
double most_difference(at::ScalarType dtype);

/// Whether this batch's attention is cuDNN's, by the process's choices. At the first use of a shape
/// it runs both kernels and waits for the device; otherwise it only looks up.
bool takes_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const BatchContext& batch, const AttentionShape& shape,
                 const FlashAttention& flash);

}  // namespace sftrun::kernels
