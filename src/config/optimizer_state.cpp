#include "sftrun/config/optimizer_state.h"

#include "sftrun/core/strings.h"

namespace sftrun::config {

bool has_8bit_moments(std::string_view name, int64_t numel) {
  constexpr int64_t kFewest = 4096;  // bitsandbytes' min_8bit_size
  return numel >= kFewest && !ends_with_name(name, "embed_tokens.weight") &&
         !ends_with_name(name, "embed_tokens_per_layer.weight");
}

int64_t moment_bytes(Optimizer optimizer, std::string_view name, int64_t numel) {
  constexpr int64_t kFp32Bytes = 4;
  if (!is_8bit(optimizer) || !has_8bit_moments(name, numel))
    return 2 * numel * kFp32Bytes;
  return 2 * (numel + (numel + kMomentBlock - 1) / kMomentBlock * kFp32Bytes);
}

}  // namespace sftrun::config
