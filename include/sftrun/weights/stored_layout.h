#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/dtype.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/spec/quantization_config.h"
#include "sftrun/weights/packed.h"
#include "sftrun/weights/safetensors.h"

/// How safetensors files hold quantised matrices: one `StoredLayout` for each `QuantLayout`, which
/// reads and writes it.
namespace sftrun::weights {

/// Looks up a tensor of the checkpoint; nullptr: not found.
using FindEntry = std::function<const SafetensorsEntry*(const std::string& name)>;

/// One of the tensors that hold a matrix in a file to write.
struct CodedTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  /// Fills exactly the tensor's bytes.
  std::function<void(const CodedMatrix& matrix, std::byte* destination)> write;
};

/// What the tensors of a matrix depend on, before it is quantised.
struct MatrixToStore {
  std::string name;            ///< of the unquantised matrix: MODULE.weight
  std::vector<int64_t> shape;  ///< [rows, columns]
  QuantOptions options;
  DType dtype = DType::kF32;  ///< of the values that are quantised

  int64_t numel() const { return shape.at(0) * shape.at(1); }
  std::string module() const;
};

/// What a `quantization_config` says about a model.
struct ModelToStore {
  QuantOptions options;
  DType dtype = DType::kF32;           ///< of the values that are quantised
  const std::set<std::string>& dense;  ///< modules that are not quantised, "lm_head" among them
};

struct StoredLayout {
  QuantLayout layout;
  /// Ending of the name of the codes' tensor, in place of ".weight"; empty: the matrix's own name.
  std::string_view codes_ending = {};
  /// Whether files hold the matrix `name` in this layout.
  bool (*holds)(const std::string& name, const FindEntry& find);
  /// The names of the tensors that a matrix `name` has in addition to its codes.
  std::vector<std::string> (*additional)(const std::string& name, const FindEntry& find);
  /// @param shape expected by the configuration   @param config for what tensors do not say
  /// @return one matrix, or of a shape [experts, rows, columns] one for each expert
  /// @throws DataError naming the tensor: parts that are missing or of another size or type, scales
  /// that are not finite, variants that the layout's library does not write
  std::vector<CodedMatrix> (*read)(const std::string& name, const std::vector<int64_t>& shape,
                                   const FindEntry& find, const std::string& where,
                                   const spec::QuantizationConfig& config);
  /// See `dequantize` of packed.h.
  void (*dequantize)(const CodedMatrix& matrix, int64_t first, int64_t count, float* destination);
  /// The tensors to write for a matrix; the codes first. Null unless its formats are made.
  std::vector<CodedTensor> (*tensors)(const MatrixToStore& matrix);
  nlohmann::ordered_json (*config)(const ModelToStore& model);  ///< `quantization_config`

  std::string codes_name(const std::string& name) const;
};

/// @param layout not kNone
const StoredLayout& stored_layout(QuantLayout layout);
/// All of them, in the order in which files are asked for a matrix.
std::span<const StoredLayout* const> stored_layouts();

/// @throws DataError naming the tensor
void require_shape_of(const SafetensorsEntry& entry, const std::vector<int64_t>& shape,
                      const std::string& name, const std::string& where);
/// "MODULE" for "MODULE.weight"; empty for other names.
std::string module_of_weight(const std::string& name);

}  // namespace sftrun::weights
