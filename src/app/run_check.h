#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/data/dataset.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/tensor_division.h"
#include "sftrun/spec/arch_spec.h"

/// Checks of a run before a worker starts.
namespace sftrun::app {

/// Returns the memory of the parsed vocabulary, so that the launcher is small while workers run.
void return_freed_memory();

/// Reads config.json and projectors.json, or a GGUF file's header. A directory needs no weights.
/// @throws DataError as weights::Checkpoint::open
spec::ArchSpec read_arch(const std::filesystem::path& model);

/// What the headers of a model's files say.
struct ModelHeaders {
  spec::ArchSpec arch;
  plan::StoredBytes stored;           ///< empty if the weights are not local
  plan::StoredBlocks blocks;          ///< of the same matrices
  std::set<std::string> block_kinds;  ///< weights::block_kinds
  bool has_weights = false;           ///< else only config.json was read
  bool knows_form = false;            ///< whether block_kinds is complete
};
/// @throws as read_arch, and DataError for invalid headers of the weights
ModelHeaders read_headers(const std::filesystem::path& model);
/// With the projectors of the run: those of the adapter that it starts from, and of `model.projectors`.
/// @throws ConfigError as plan::add_projectors
ModelHeaders read_headers(const std::filesystem::path& model, const config::RunConfig& config);
/// Those of the adapter that a run starts from.
std::vector<FeatureProjector> projectors_of_start(const config::RunConfig& config);

/// @throws DataError if the model is a local directory without weights   @param name as configured;
/// of a model on a hub a dry run has no weights
void require_weights(const std::string& name, const std::filesystem::path& model);

/// Checks that the names in `tuning` select parameters. @throws ConfigError that lists the existing
/// names
void check_tuning(const config::TuningConfig& tuning, const spec::ArchSpec& arch);

/// Warns about files that are used for both training and validation.
void warn_of_files_in_both(const config::DataConfig& data);

struct RunCheck {
  std::vector<std::string> lines;         ///< the report
  std::vector<data::DatasetTrial> train;  ///< of config.data.train, in their order
};
/// Reads tokenizer, template and the first records of each data set. Logs the warnings that
/// training would log.
/// @param config with dtype resolved   @param headers of the model
/// @param counts_small_data reads all records of data sets that are so small that their size decides
/// batch sizes (data/small_data.h)
/// @throws the errors that the run would throw
RunCheck check_run(const config::RunConfig& config, const std::filesystem::path& model,
                   const ModelHeaders& headers, bool counts_small_data = false);

/// The trials of check_run for the training data alone, without a report.
std::vector<data::DatasetTrial> try_training_data(const config::RunConfig& config,
                                                  const std::filesystem::path& model,
                                                  const ModelHeaders& headers,
                                                  bool counts_small_data);

}  // namespace sftrun::app
