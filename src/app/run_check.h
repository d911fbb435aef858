#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/spec/arch_spec.h"

/// What can be known of a run before a worker starts.
namespace sftrun::app {

/// From config.json or a GGUF file's header; of a directory no weights need to be there.
/// @throws DataError as weights::Checkpoint::open for what it reads
spec::ArchSpec read_arch(const std::filesystem::path& model);

/// What a model's files say before any weight is read.
struct ModelHeaders {
  spec::ArchSpec arch;
  plan::StoredBytes stored;           ///< empty where its weights are not here
  std::set<std::string> block_kinds;  ///< weights::block_kinds
  bool has_weights = false;           ///< else only config.json was read
  bool knows_form = false;            ///< whether block_kinds is known to be all there is
};
/// @throws as read_arch, and what is wrong with the headers of its weights
ModelHeaders read_headers(const std::filesystem::path& model);

/// Whether there is something to train by the names that `tuning` gives. @throws ConfigError naming
/// what there is
void check_tuning(const config::TuningConfig& tuning, const spec::ArchSpec& arch);

/// Warns of files that are both trained and validated on.
void warn_of_files_in_both(const config::DataConfig& data);

struct RunCheck {
  std::vector<std::string> lines;         ///< what was found
  std::vector<data::DatasetTrial> train;  ///< of config.data.train, in their order
};
/// Reads what a run would read first: tokenizer and template, and the first records of each data
/// set. Logs what training would warn of.
/// @param config with dtype resolved   @param headers of the model
/// @throws what the run would throw
RunCheck check_run(const config::RunConfig& config, const std::filesystem::path& model,
                   const ModelHeaders& headers);

}  // namespace sftrun::app
