#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reader_advice.h"
#include "session.h"
#include "sftrun/config/base_record.h"
#include "sftrun/export/run_result.h"
#include "sftrun/observe/run_report.h"

/// What rank 0 tells the user before the first step and after the last one.
namespace sftrun::engine {

/// @param trained number of trainable parameters, in `num_tensors` tensors
/// @param of_model parameters of the model   @param is_frozen the base is not trained
std::string trainable_line(uint64_t trained, uint64_t of_model, bool is_frozen, size_t num_tensors,
                           const std::string& mode);

/// The run's size, as its trainer counts it.
struct RunSize {
  int64_t total_steps = 0, num_evaluations = 0;
  int64_t bins_in_epoch = 0;  ///< 0: not known
  bool learns_nothing = false;
  bool asks_for_batch = false;  ///< train::BatchRequest::asks_for_batch
};
/// @param config with all batch sizes
std::string steps_line(const config::RunConfig& config, const RunSize& size);
/// For a batch that the user has chosen and that is larger than an epoch.
std::optional<std::string> large_batch_warning(const config::RunConfig& config,
                                               const RunSize& size);
/// Before the first step.   @param base_record of an adapter's run; null: full fine-tuning
void log_start(const config::RunConfig& config, model::Decoder& decoder, const Compute& compute,
               const config::BaseRecord* base_record, const RunSize& size);

/// Memory for tensors, as planned and as used by each rank; of more than eight ranks by the fullest
/// and the emptiest.   @pre there are ranks and a plan
std::string memory_line(const observe::RunReport& report);

/// Where a run's limits of images are kept, and who reads them.
/// @param model the folder of its image processor
std::vector<std::string> lines_of_limits(const images::ImageCaps& caps,
                                         const std::filesystem::path& model, bool is_adapter);

/// Records that cannot be used, with data.bad_records: skip.
struct SkippedRecords {
  int64_t bad = 0;   ///< left out of the training data
  int64_t lost = 0;  ///< without labels, because their images or features could not be read
};

/// After a run that finished.
/// @param shown of the run's objective   @param leaves_template_unused data::leaves_template_unused
void log_result(const exporting::RunResult& result, const config::ShownMetric& shown,
                const config::BaseRecord* base_record, model::Decoder& decoder,
                const SkippedRecords& skipped, bool leaves_template_unused);

}  // namespace sftrun::engine
