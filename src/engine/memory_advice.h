#pragma once

#include <c10/util/Exception.h>

#include <memory>
#include <string>

#include "sftrun/app/requests/bench.h"
#include "sftrun/app/requests/eval.h"
#include "sftrun/app/requests/generate.h"
#include "sftrun/app/requests/score.h"
#include "sftrun/app/requests/worker.h"
#include "sftrun/config/run_config.h"
#include "sftrun/model/decoder.h"

/// Advice for out-of-memory errors. It leaves out what is in use already.
namespace sftrun::engine {

enum class Memory { kHost, kGpu };

/// Which memory there was too little of. Of another exception than LibTorch's: the host's.
Memory memory_of(const c10::OutOfMemoryError& error);

/// During a command.
std::string memory_advice(const app::WorkerRequest& request, Memory memory);
std::string memory_advice(const app::GenerateRequest& request, Memory memory);
std::string memory_advice(const app::EvalRequest& request, Memory memory);
std::string memory_advice(const app::ScoreRequest& request, Memory memory);
std::string memory_advice(const app::BenchRequest& request, Memory memory);
std::string general_memory_advice(Memory memory);
template <class Request>
std::string memory_advice(const Request& /*request*/, Memory memory) {
  return general_memory_advice(memory);
}

/// During training. @param config defaults: unknown
std::string training_memory_advice(const config::RunConfig& config, Memory memory);

/// While a model is loaded.
std::string model_memory_advice(const model::DecoderOptions& options, Memory memory);

/// `model::Decoder::load`. @throws OutOfMemoryError with advice about the model where it does not
/// fit the device
std::unique_ptr<model::Decoder> load_decoder(
    const std::shared_ptr<const weights::Checkpoint>& checkpoint,
    const model::DecoderOptions& options);

/// The first line of what LibTorch says.
std::string first_line(const std::string& text);

}  // namespace sftrun::engine
