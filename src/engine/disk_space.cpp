#include "disk_space.h"

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/units.h"
#include "sftrun/train/optimizer.h"

namespace sftrun::engine {
namespace fs = std::filesystem;

uint64_t optimizer_state_bytes(model::Decoder& decoder, const config::TrainConfig& settings) {
  uint64_t bytes = 0;
  for (const layers::Parameter& parameter : decoder.parameters().parameters()) {
    bytes += static_cast<uint64_t>(
        config::optimizer_state_bytes(settings, parameter.role, parameter.shape_in_files()));
  }
  return bytes;
}

void require_disk_space(const exporting::RunResult& result, model::Decoder& decoder,
                        const config::TrainConfig& settings) {
  constexpr uint64_t kSmallFiles = uint64_t{1} << 20;
  const auto values = static_cast<uint64_t>(decoder.parameters().numel());
  const uint64_t checkpoint =
      values * sizeof(float) + kSmallFiles + optimizer_state_bytes(decoder, settings);
  const uint64_t needed = checkpoint + exporting::result_bytes(result, values);
  std::error_code code;
  const fs::space_info space = fs::space(result.run_dir, code);
  if (code) return;  // a file system that does not say
  if (space.available < needed) {
    throw DeviceError(fmt::format("the disk has {} free, and a checkpoint takes {}, the result {}",
                                  format_bytes(space.available), format_bytes(checkpoint),
                                  format_bytes(needed - checkpoint)),
                      result.run_dir.string(), "free disk space, or choose another output.dir");
  }
  if (space.available < needed + checkpoint) {
    log::warn(
        "the disk has {} free: room for one checkpoint of {} and the result, not for a second "
        "checkpoint, which is written before the first is removed",
        format_bytes(space.available), format_bytes(checkpoint));
  }
}

}  // namespace sftrun::engine
