#include "stored_dtype.h"

namespace sftrun::exporting {

DType dtype_to_store(const std::string& wanted, const weights::Checkpoint& base) {
  if (wanted == "f32") return DType::kF32;
  if (wanted == "f16") return DType::kF16;
  if (wanted == "bf16") return DType::kBF16;
  const std::string& format = base.tensors().at(0).format;
  if (format == "F32") return DType::kF32;
  if (format == "F16") return DType::kF16;
  return DType::kBF16;
}

std::string dtype_word(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kF16 ? "f16" : "bf16";
}

}  // namespace sftrun::exporting
