#pragma once

#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::weights {

struct FoundTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string where;  ///< path of its file
};

/// @throws DataError naming the tensor and both shapes
[[noreturn]] void refuse_shape(const FoundTensor& tensor, const std::vector<int64_t>& expected);

/// Compares the tensors of an architecture with those of a checkpoint. @throws DataError naming the
/// first tensors that are missing, unknown (with the nearest known name) or of another shape
/// @param where the checkpoint, for tensors that are in no file
void check_tensors(const std::vector<spec::TensorSpec>& expected,
                   const std::vector<FoundTensor>& found, const std::string& where);

}  // namespace sftrun::weights
