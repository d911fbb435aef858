#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "hf_files.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/quantization_config.h"
#include "sftrun/weights/packed.h"

/// Matrices that a directory's files hold in one of the layouts of stored_layout.h.
namespace sftrun::weights {

struct HfQuantisedMatrix {
  std::vector<CodedMatrix> parts;  ///< one, or the experts' matrices; their rows follow one another
  std::string stored_name;         ///< in the files; empty: each part has a name of its own

  int64_t values_before(size_t part) const;  ///< of all parts before it
  PackedMatrix packed() const;
};

struct HfQuantised {
  std::map<std::string, HfQuantisedMatrix> matrices;
  std::set<std::string> parts;  ///< names of tensors that are not a matrix, but belong to one
};
/// @throws DataError naming the tensor: see StoredLayout::read
HfQuantised find_quantised(const std::vector<spec::TensorSpec>& specs, const HfFiles& files,
                           const spec::QuantizationConfig& config);

/// Codes and scales; the codes first.
std::vector<std::span<const std::byte>> stored_parts(const CodedMatrix& matrix);
/// Dequantises all values.
void read_quantised(const CodedMatrix& matrix, DType dtype, std::byte* destination);

}  // namespace sftrun::weights
