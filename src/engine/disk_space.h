#pragma once

#include "sftrun/config/run_config.h"
#include "sftrun/export/run_result.h"
#include "sftrun/model/decoder.h"

namespace sftrun::engine {

/// Of the whole run, as checkpoints hold it.
uint64_t optimizer_state_bytes(model::Decoder& decoder, const config::TrainConfig& settings);

/// Called before the first step. Warns if the disk has no room for a second checkpoint, which is
/// written before the first one is removed.
/// @throws DeviceError with the sizes if there is no room for a checkpoint and the result
void require_disk_space(const exporting::RunResult& result, model::Decoder& decoder,
                        const config::TrainConfig& settings);

}  // namespace sftrun::engine
