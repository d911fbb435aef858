#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

namespace sftrun::config {

/// How a run that trains an adapter holds its frozen base. The adapter fits just that, so it says
/// so: in the run's run.json, and in sftrun_base.json beside every adapter_config.json, which goes
/// where the adapter goes. PEFT does not look at it.
struct HeldBase {
  std::string model;        ///< name or path as configured
  std::string fingerprint;  ///< of its weights
  std::string form;         ///< most of its matrices are in: "nf4", "Q4_1", …; empty: in `dtype`
  std::string dtype;        ///< of the rest, and of computation: "fp32"
  /// quant, double_quant, quant_block_size, quant_embeddings and skip_modules, by which the same
  /// base is held in the same form again; and lora.init.
  TuningConfig tuning;
  /// weights::norm_squares of the base; empty: written before there were any.
  std::vector<double> norms = {};
  std::string layout = {};  ///< weights::dense_layout of the base; empty: not known, or not dense

  /// Its matrices were what PiSSA's principal parts left of them, which no file has.
  bool pissa() const { return tuning.lora.init == LoraInit::kPissa; }
  std::string words() const;  ///< "nf4 in blocks of 64 with quantised factors", "fp32"
  nlohmann::ordered_json to_json() const;
  /// @throws DataError naming `where`
  static HeldBase from_json(const nlohmann::ordered_json& json, const std::string& where);
};

/// Where to write a model as a run with this tuning holds it ("models/base-nf4"), and the `sftrun
/// quantize …` that does.   @pre tuning.quantises_base()
std::string quantised_path(const TuningConfig& tuning, const std::string& model);
std::string quantize_command(const TuningConfig& tuning, const std::string& model);
/// What such a run holds in fewer bits, too, and that command leaves dense, for nothing else loads
/// it: "embedding and head", "experts"; empty: nothing.
std::string dense_when_written(const TuningConfig& tuning, bool has_experts);

inline constexpr const char* kHeldBaseFile = "sftrun_base.json";
/// Of an adapter; nullopt: it does not say.   @throws DataError
std::optional<HeldBase> read_held_base(const std::filesystem::path& adapter);

}  // namespace sftrun::config
