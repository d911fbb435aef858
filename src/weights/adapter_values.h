#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sftrun/weights/safetensors.h"

namespace sftrun::weights {

/// The values of an adapter's tensors, checked.
class AdapterValues {
 public:
  explicit AdapterValues(std::string where) : where_(std::move(where)) {}

  /// @param r rank of the adapter, for the message; 0: not an adapter
  /// @throws DataError for another shape, a type that is not supported, NaN and infinite values
  std::vector<float> read(const SafetensorsEntry& entry, const std::vector<int64_t>& shape,
                          int64_t r = 0) const;
  /// @throws DataError "tensor `…` `what`"
  [[noreturn]] void fail(const std::string& tensor, const std::string& what,
                         const std::string& fix = {}) const;
  const std::string& where() const { return where_; }

 private:
  std::string where_;
};

}  // namespace sftrun::weights
