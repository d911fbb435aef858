#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/peft.h"

/// Reports which programs load an adapter in PEFT's layout.
namespace sftrun::weights {

struct WrittenAdapter {
  const AdapterConfig& config;      ///< as written
  const spec::ArchSpec& arch;       ///< of the base
  std::filesystem::path base;       ///< directory or .gguf file of the base
  std::filesystem::path directory;  ///< of the adapter
  std::function<bool(const std::string& module)> is_adapted;  ///< also for experts' tensors
  /// The format to which the run quantised the base when loading it ("nf4"; empty: it did not), the
  /// command that writes such a base, and the layers that the written base keeps unquantised although
  /// the run quantised them (empty: none).
  std::string quantised_to = {}, quantize_command = {}, dense_when_written = {};
  /// Why no command writes such a base; empty: `quantize_command` does.
  std::string unwritten_because = {};
  bool uses_pissa = false;  ///< the run began with PiSSA
  bool embeds = false;      ///< it embeds texts
};

/// One line each for PEFT, vLLM and llama.cpp: whether it loads the adapter directly, else the
/// command to run. Of one that embeds texts only PEFT's: the others serve models that write them.
std::vector<std::string> reader_support(const WrittenAdapter& adapter);

}  // namespace sftrun::weights
