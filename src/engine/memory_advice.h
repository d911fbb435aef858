#pragma once

#include <memory>
#include <string>

#include "sftrun/model/decoder.h"

/// Advice for out-of-memory errors.
namespace sftrun::engine {

/// During a command. @param command as the engine's: "worker" (a rank of `train`), …
std::string memory_advice(const std::string& command);

/// While a model is loaded. @param trains whether for training
std::string model_memory_advice(bool trains);

/// `model::Decoder::load`. @throws OutOfMemoryError with advice about the model where it does not
/// fit the device
std::unique_ptr<model::Decoder> load_decoder(
    const std::shared_ptr<const weights::Checkpoint>& checkpoint,
    const model::DecoderOptions& options);

/// The first line of what LibTorch says.
std::string first_line(const std::string& text);

}  // namespace sftrun::engine
