#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/peft.h"

/// Where an adapter loads that was written in PEFT's layout.
namespace sftrun::weights {

struct WrittenAdapter {
  const AdapterConfig& config;                                ///< as it was written
  const spec::ArchSpec& arch;                                 ///< of the base
  std::filesystem::path base;                                 ///< its directory or .gguf file
  std::filesystem::path directory;                            ///< the adapter's
  std::function<bool(const std::string& module)> is_adapted;  ///< also of an experts' tensor
  /// What the run quantised the base to as it loaded it ("nf4"), and the command that writes such a
  /// base; empty: nothing. And what is dense in what that writes, if anything.
  std::string quantised_to = {}, quantize_command = {}, dense_when_written = {};
  bool takes_base_apart = false;  ///< the run began with PiSSA
};

/// A line each of PEFT, vLLM and llama.cpp: whether it loads as it is, else the command to run.
std::vector<std::string> where_it_loads(const WrittenAdapter& adapter);

}  // namespace sftrun::weights
