#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

namespace sftrun::config {

/// The form in which a run stores the frozen base of its adapter. The adapter fits only a base in
/// this form, so it is written to run.json and to sftrun_base.json beside adapter_config.json. PEFT
/// ignores that file.
struct BaseRecord {
  std::string model;        ///< name or path as configured
  std::string fingerprint;  ///< of its weights
  std::string form;         ///< format of most matrices: "nf4", "Q4_1", …; empty: `dtype`
  std::string dtype;        ///< of the other tensors, and of computation: "fp32"
  /// quant, double_quant, quant_block_size, quant_embeddings and skip_modules, which reproduce the
  /// same form; and lora.init.
  TuningConfig tuning;
  /// weights::norm_squares of the base; empty: written by an older version.
  std::vector<double> norms = {};
  std::string layout = {};  ///< weights::dense_layout of the base; empty: unknown, or not dense

  /// Whether the base was the residual of PiSSA, which is in no file.
  bool pissa() const { return tuning.lora.init == LoraInit::kPissa; }
  std::string words() const;  ///< "nf4 in blocks of 64 with quantised scales", "fp32"
  nlohmann::ordered_json to_json() const;
  /// @throws DataError naming `where`
  static BaseRecord from_json(const nlohmann::ordered_json& json, const std::string& where);
};

/// A path for the base in the form of this tuning ("models/base-nf4"), and the command `sftrun
/// quantize …` that writes it.   @pre tuning.quantises_base()
std::string quantised_path(const TuningConfig& tuning, const std::string& model);
std::string quantize_command(const TuningConfig& tuning, const std::string& model);
/// Parts that the run quantises but that command leaves dense, because other programs could not
/// load them: "embedding and head", "experts"; empty: none.
std::string dense_when_written(const TuningConfig& tuning, bool has_experts);

inline constexpr const char* kBaseRecordFile = "sftrun_base.json";
/// Reads it from an adapter's directory; nullopt: the adapter has none.   @throws DataError
std::optional<BaseRecord> read_base_record(const std::filesystem::path& adapter);

}  // namespace sftrun::config
