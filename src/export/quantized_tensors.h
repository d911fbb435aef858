#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "sftrun/kernels/quant.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/safetensors.h"
#include "sftrun/weights/stored_layout.h"

/// Quantised models on disk, in the layouts of sftrun/weights/stored_layout.h.
namespace sftrun::exporting {

/// Which modules are quantised, and which linear modules are not.
struct QuantizedModules {
  std::set<std::string> quantised;  ///< full names
  std::set<std::string> dense;      ///< as transformers' llm_int8_skip_modules has them
  std::set<std::string> unused;     ///< names to skip that match no module

  bool take(const weights::TensorInfo& info) const;  ///< whether it is one's weight
  void require_used() const;  ///< @throws ConfigError of a name to skip that names no module
};
/// @param skipped names or parts of names
QuantizedModules choose_modules(const spec::ArchSpec& arch,
                                const std::vector<std::string>& skipped);

/// The tensors of quantised matrices. The last matrix is cached, because its tensors are written one
/// after the other.
class QuantizedTensors {
 public:
  /// @param dtype of the values that are quantised
  QuantizedTensors(const weights::Checkpoint& base, const QuantOptions& options, DType dtype)
      : base_(base), options_(options), dtype_(dtype) {}

  /// @param values the matrix; empty: what the base holds
  void add(const weights::TensorInfo& info, const std::function<at::Tensor()>& values,
           std::vector<weights::TensorToWrite>& tensors);
  /// `quantization_config`
  nlohmann::ordered_json config(const QuantizedModules& modules) const;

 private:
  using Values = std::function<at::Tensor()>;
  struct Matrix {
    const weights::TensorInfo* info;
    Values values;
  };
  const kernels::QuantizedMatrix& quantised(const Matrix& matrix);
  const weights::StoredLayout& layout() const;

  const weights::Checkpoint& base_;
  QuantOptions options_;
  DType dtype_;
  std::string name_;
  kernels::QuantizedMatrix matrix_;
};

}  // namespace sftrun::exporting
