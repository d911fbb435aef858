#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/gguf.h"

namespace sftrun::weights {

/// Which tensors of a GGUF file hold each of the model's: one with the same values, gate and up of
/// all experts, the matrices of single experts, or rows of the fused tensor of q, k and v.
class GgufTensors {
 public:
  /// @param file, arch outlive this
  GgufTensors(const GgufFile& file, const spec::ArchSpec& arch);

  /// With the file's own names, which users can look up.   @throws DataError: see check_tensors
  void check(const std::vector<spec::TensorSpec>& wanted) const;
  /// In the order of memory.   @pre check   @throws DataError of one whose type is not supported
  std::vector<const GgufTensor*> sources_of(const spec::TensorSpec& spec);

 private:
  std::vector<std::string> names_of(const spec::TensorSpec& spec) const;
  const GgufTensor* fused_with(const spec::TensorSpec& spec) const;
  const GgufTensor* source_of(const spec::TensorSpec& spec, const std::string& name);
  bool are_apart(const spec::TensorSpec& spec) const;
  std::vector<int64_t> shape_of_source(const spec::TensorSpec& spec, size_t count) const;
  const GgufTensor* require_readable(const std::string& name) const;
  bool predicts_further(const std::string& name) const;

  const GgufFile& file_;
  const spec::ArchSpec& arch_;
  std::map<std::string, std::string> names_;
  int64_t num_blocks_ = 0;
  std::deque<GgufTensor> parts_of_fused_;  ///< a deque, because others point to its elements
};

}  // namespace sftrun::weights
