#include <cmath>
#include <vector>

#include "fuzz.h"
#include "memory_file.h"
#include "sftrun/data/features.h"

namespace {

constexpr int64_t kMaxValues = 1 << 16;

/// What has so many rows by its header can be read, and has finite values.
void read_rows(const std::filesystem::path& path, const sftrun::FeatureProjector& projector) {
  using namespace sftrun;
  fuzz::expecting_errors([&] {
    const int64_t rows = data::num_feature_rows(path, projector);
    const int64_t tokens = projector.tokens > 0 ? projector.tokens : rows;
    if (tokens * projector.input_width > kMaxValues) return;
    std::vector<float> values(static_cast<size_t>(tokens * projector.input_width));
    data::read_features(
        {.media = {.path = path.string()}, .projector = 0, .rows = rows, .num_tokens = tokens},
        projector, values);
    for (const float value : values)
      if (!std::isfinite(value)) __builtin_trap();
  });
}

}  // namespace

/// The bytes as a file of NumPy's, for projectors of some widths.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sftrun::fuzz::MemoryFile file;
  const std::filesystem::path path = file.holding({reinterpret_cast<const char*>(data), size});
  for (const int64_t width : {1, 2, 3})
    for (const int64_t tokens : {0, 1, 2})
      read_rows(path, {.name = "p", .input_width = width, .hidden = 1, .tokens = tokens});
  return 0;
}
