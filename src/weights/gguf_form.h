#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::weights {

/// How llama.cpp's tensor differs from Hugging Face's tensor of the same weights.
struct GgufForm {
  enum class Value { kSame, kPlusOne, kMinusExp };  ///< w, w + 1, or -exp(w) is stored
  Value value = Value::kSame;
  /// Row (column) i is the file's row (column) rows[i] (columns[i]); empty: the same order.
  std::vector<int64_t> rows, columns;
  bool is_same() const { return value == Value::kSame && rows.empty() && columns.empty(); }
};
GgufForm gguf_form(const spec::ArchSpec& arch, const spec::TensorSpec& tensor);

}  // namespace sftrun::weights
