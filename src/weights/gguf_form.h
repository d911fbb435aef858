#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::weights {

/// How llama.cpp's tensor differs from Hugging Face's of the same weights.
struct GgufForm {
  enum class Value { kSame, kPlusOne, kMinusExp };  ///< w, w + 1, or -exp(w) is stored
  Value value = Value::kSame;
  /// The file's row (column) that is this one here; empty: in the same order.
  std::vector<int64_t> rows, columns;
  bool is_same() const { return value == Value::kSame && rows.empty() && columns.empty(); }
};
GgufForm gguf_form(const spec::ArchSpec& arch, const spec::TensorSpec& tensor);

}  // namespace sftrun::weights
