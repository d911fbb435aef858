#include "adapter_values.h"

#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/weights/convert.h"
#include "shape_math.h"

namespace sftrun::weights {

std::vector<float> AdapterValues::read(const SafetensorsEntry& entry,
                                       const std::vector<int64_t>& shape, int64_t r) const {
  if (entry.shape != shape) {
    const std::string because = r == 0 ? "" : fmt::format(" with r {}", r);
    fail(entry.name,
         fmt::format("has the shape {}, expected {}{}", shape_text(entry.shape), shape_text(shape),
                     because),
         "adapter_config.json, adapter_model.safetensors and the model must belong together");
  }
  const std::optional<DType> dtype = float_dtype(entry.dtype);
  if (!dtype) fail(entry.name, fmt::format("is stored as {}, which is not supported", entry.dtype));
  std::vector<float> result(static_cast<size_t>(*checked_numel(shape)));
  convert(*dtype, entry.bytes.data(), DType::kF32, reinterpret_cast<std::byte*>(result.data()),
          static_cast<int64_t>(result.size()));
  if (!all_finite(result)) {
    fail(entry.name, "has NaN or infinite values",
         "the training that wrote it diverged: use an earlier checkpoint");
  }
  return result;
}

void AdapterValues::fail(const std::string& tensor, const std::string& what,
                         const std::string& fix) const {
  throw DataError(fmt::format("tensor `{}` {}", tensor, what), where_, fix);
}

}  // namespace sftrun::weights
