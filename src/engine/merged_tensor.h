#pragma once

#include <ATen/ATen.h>

#include <string>

#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/checkpoint.h"

namespace sftrun::engine {

/// W + scale * B A in fp32, one tensor at a time. Parts of one tensor are asked for one after the
/// other: the last answer is kept.
class MergedWeights {
 public:
  MergedWeights(const weights::Checkpoint& base, const weights::AdapterTensors& adapter)
      : base_(base), adapter_(adapter) {}

  /// Whether the adapter has an update of it.
  bool is_changed(const std::string& name) const { return update_of(name) != nullptr; }
  /// [shape of the tensor], what the base holds where the adapter has no update.
  at::Tensor of(const weights::TensorInfo& info);

 private:
  const weights::LoraPair* update_of(const std::string& name) const;

  const weights::Checkpoint& base_;
  const weights::AdapterTensors& adapter_;
  std::string name_;
  at::Tensor merged_;
};

}  // namespace sftrun::engine
