#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "sftrun/kernels/quant.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/tensor_parallel.h"

namespace sftrun::model {

/// The tensors of a whole model by name, and what a tensor-parallel rank has of each.
class ModelTensors {
 public:
  /// @param with_vision also those of the image side
  ModelTensors(const spec::ArchSpec& arch, const spec::TensorParallel& tensor,
               bool with_vision = false);

  const std::vector<spec::TensorSpec>& all() const { return tensors_; }
  const spec::TensorSpec& spec(const std::string& name) const { return *by_name_.at(name); }
  /// null: this rank has the whole tensor
  const TensorSlice* slice_of(const std::string& name) const;
  /// The part of a tensor that this rank has; it keeps no memory of the rest.
  at::Tensor part_of(const std::string& name, const at::Tensor& whole) const;
  /// @throws ConfigError naming parallel.tp if the format's blocks cannot be divided so
  kernels::QuantizedMatrix part_of(const std::string& name,
                                   const kernels::QuantizedMatrix& whole) const;

 private:
  std::vector<spec::TensorSpec> tensors_;
  std::map<std::string, const spec::TensorSpec*> by_name_;
  std::map<std::string, TensorSlice> slices_;
};

/// The slice in dimension `dim` of what belongs to the same rows or columns as a divided weight.
TensorSlice moved_to(int64_t dim, const TensorSlice& slice);

}  // namespace sftrun::model
