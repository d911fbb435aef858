#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "prepared_run.h"
#include "rank.h"

/// Frozen models beside a run's own, or before it: the reference model of `train.reference`, and the
/// teacher of `train.teacher`.
namespace sftrun::engine {

struct OtherModelAsked {
  std::string name;                    ///< as configured, for messages
  std::string word;                    ///< "the reference model"
  std::string setting;                 ///< that names it
  std::string model;                   ///< path
  std::optional<std::string> adapter;  ///< directory
  /// nullopt: as its files have it, or as its adapter's run held it.
  std::optional<config::TuningConfig> form = {};
  /// It reads images as the run does, and not as the run that trained it.
  bool reads_as_run = false;
};

/// Another model or adapter than the run's own.   @pre the data of the run are read
class OtherModel {
 public:
  /// @param run must outlive it   @param device as --device has it
  OtherModel(const PreparedRun& run, OtherModelAsked asked, std::string device);

  const OtherModelAsked& asked() const { return asked_; }
  /// Its base, before the weights are loaded.   @throws DataError
  std::shared_ptr<const weights::Checkpoint> open() const;
  /// What it says depends on this. Reads all weights, unless their hashes are remembered.   @throws DataError
  nlohmann::ordered_json identity(const weights::Checkpoint& checkpoint) const;
  /// Loads it, divided as the run is; it reads what the run's records have. All ranks call it.
  /// @return 0, or the exit code of a stop
  /// @throws ConfigError for a model that does not read the images or features of the records
  int load(Rank& rank, LoadedModel& loaded) const;

 private:
  void require_same_inputs(const spec::ArchSpec& other) const;

  const PreparedRun& run_;
  OtherModelAsked asked_;
  app::ModelRequest request_;
  std::string device_;
};

/// What a model makes of images is in its files, and not in its weights.
/// @param model its folder, or its file, beside which there is none
nlohmann::ordered_json image_files_of(const std::filesystem::path& model);

}  // namespace sftrun::engine
