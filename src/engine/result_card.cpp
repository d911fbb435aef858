#include "result_card.h"

#include <filesystem>

#include "reader_advice.h"
#include "sftrun/core/error.h"
#include "sftrun/foreign/load.h"
#include "sftrun/observe/run_card.h"

namespace sftrun::engine {
namespace {

/// Writes the base as the run quantised it; empty: it did not, or no command does.
std::string quantize_command_of(const TrainedResult& training) {
  const config::BaseRecord* base_record = training.base_record;
  if (base_record == nullptr || !base_record->tuning.quantises_base()) return {};
  if (!unwritten_because(*base_record, training.result.base).empty()) return {};
  return config::quantize_command(base_record->tuning, training.command.model.name);
}

}  // namespace

std::string card_text(const TrainedResult& training) {
  const std::string& model = training.command.model.name;
  const std::string command = quantize_command_of(training);
  observe::ModelCard card = observe::card_of_run(
      training.trained,
      {.base_model =
           training.result.adapter ? training.result.adapter->base_model_name_or_path : model,
       .base_record = training.base_record,
       .reads_images = training.reads_images,
       .leaves_template_unused = training.leaves_template_unused,
       .quantize_command = command,
       .quantised_base =
           command.empty() ? "" : config::quantised_path(training.base_record->tuning, model),
       .trained_steps = training.trained_steps,
       .total_steps = training.total_steps,
       .epochs = training.epochs,
       .dtype = training.report.dtype,
       .world_size = training.report.world_size,
       .version = SFTRUN_VERSION},
      observe::read_run_summary(training.result.run_dir / "metrics.jsonl",
                                training.trained.train.shown_metric()));
  if (training.command.train.load_best_model_at_end && training.best != nullptr)
    card.kept = {.step = training.best->step,
                 .metric = training.best->metric,
                 .value = *training.best->value};
  return observe::to_markdown(card);
}

config::RunConfig trained_config(const config::RunConfig& command) {
  const std::filesystem::path run_dir = command.output.dir;
  try {
    return foreign::load_config(run_dir / "config.resolved.yaml", {}).config;
  } catch (const Error&) {  // it was removed, or edited
    return command;
  }
}

}  // namespace sftrun::engine
