#pragma once

#include <ATen/ATen.h>

#include <set>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/train/trained_values.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::exporting {

/// Matrices that the adapter's run quantised when it loaded them: the adapter was trained on their
/// dequantised values.
struct QuantisedByRun {
  QuantOptions options;
  std::set<std::string> tensors;
};
/// Excludes matrices that are quantised in the files of `base` already.
QuantisedByRun matrices_quantised(const config::TuningConfig& tuning,
                                  const weights::Checkpoint& base);

/// W + scale * B A in fp32, W dequantised where the run quantised it, with DoRA its rows at their
/// magnitudes (of an embedding its columns), or what the adapter has in place of W
/// (modules_to_save); one tensor at a time. The last tensor is cached, because its parts are read one
/// after the other.
class MergedWeights {
 public:
  /// @param pissa updates are relative to the base without its principal part
  /// @param trained tensors of a checkpoint in place of the base's; may be null
  /// @throws DataError for an update that no tensor of the base takes
  MergedWeights(const weights::AdapterBase& base, const weights::AdapterTensors& adapter,
                bool pissa, QuantisedByRun quantised = {},
                const train::TrainedValues* trained = nullptr);

  /// Whether it differs from the base's file.
  bool is_changed(const std::string& name) const {
    return is_trained(name) || has_own(name) || replaced_.contains(name) ||
           quantised_.tensors.contains(name);
  }
  /// [shape of the tensor]: the merged tensor; the base's if the adapter does not change it.
  at::Tensor of(const weights::TensorInfo& info);

  /// Whether the head is separated from its tied embedding.
  bool unties_head() const;
  /// The separate head: values in fp32, and as a tensor to write.
  at::Tensor head_values() const;
  weights::TensorToWrite head(DType dtype) const;

 private:
  bool is_trained(const std::string& name) const {
    return trained_ != nullptr && trained_->has(name);
  }
  const weights::LoraPair* update_of(const std::string& name) const;
  /// Whether the adapter changes it, beside what it replaces of its base.
  bool has_own(const std::string& name) const {
    return update_of(name) != nullptr || adapter_.saved.contains(name);
  }
  std::string embedding() const { return spec::embedding_module(base_.arch()) + ".weight"; }

  const weights::Checkpoint& base_;
  const weights::AdapterTensors& adapter_;
  std::set<std::string> replaced_;
  bool pissa_;
  QuantisedByRun quantised_;
  const train::TrainedValues* trained_;
  std::string name_;
  at::Tensor merged_;
};

}  // namespace sftrun::exporting
