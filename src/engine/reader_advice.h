#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "sftrun/config/base_record.h"
#include "sftrun/model/decoder.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/peft.h"

/// Which programs load the adapter that a run writes.
namespace sftrun::engine {

/// Names of the modules, and of the experts' tensors, that the decoder's adapter changes.
std::set<std::string> adapted_modules(model::Decoder& decoder);

/// Logs what vLLM does with the adapter, if that is not what PEFT does.
void log_vllm_advice(model::Decoder& decoder);

/// Whether the base's own files have matrices in this format: "nf4".
bool is_stored_in(const weights::Checkpoint& base, const std::string& format);

/// Why `sftrun quantize` does not write the base as the run quantised it; empty: it does.
/// @pre base_record.tuning.quantises_base()
std::string unwritten_because(const config::BaseRecord& base_record,
                              const weights::Checkpoint& base);

/// One line for each program that loads adapters.
/// @param config as written   @param adapted from adapted_modules   @param directory the adapter's
/// @param embeds whether it embeds texts
std::vector<std::string> reader_lines(const weights::AdapterConfig& config,
                                      const std::set<std::string>& adapted,
                                      const config::BaseRecord& base_record,
                                      const weights::Checkpoint& base,
                                      const std::filesystem::path& base_path,
                                      const std::filesystem::path& directory, bool embeds);

}  // namespace sftrun::engine
