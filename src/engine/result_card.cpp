#include "result_card.h"

#include <filesystem>

#include "reader_advice.h"
#include "sftrun/core/error.h"
#include "sftrun/foreign/load.h"
#include "sftrun/observe/run_card.h"

namespace sftrun::engine {
namespace {

/// Writes the base as the run quantised it; empty: it did not, or no command does.
std::string quantize_command_of(const TrainedResult& of) {
  const config::BaseRecord* base_record = of.base_record;
  if (base_record == nullptr || !base_record->tuning.quantises_base()) return {};
  if (!unwritten_because(*base_record, of.result.base).empty()) return {};
  return config::quantize_command(base_record->tuning, of.command.model.name);
}

}  // namespace

std::string card_text(const TrainedResult& of) {
  const std::string& model = of.command.model.name;
  const std::string command = quantize_command_of(of);
  observe::ModelCard card = observe::card_of_run(
      of.trained,
      {.base_model = of.result.adapter ? of.result.adapter->base_model_name_or_path : model,
       .base_record = of.base_record,
       .leaves_template_unused = of.leaves_template_unused,
       .quantize_command = command,
       .quantised_base =
           command.empty() ? "" : config::quantised_path(of.base_record->tuning, model),
       .trained_steps = of.trained_steps,
       .total_steps = of.total_steps,
       .epochs = of.epochs,
       .dtype = of.report.dtype,
       .world_size = of.report.world_size,
       .version = SFTRUN_VERSION},
      observe::read_run_summary(of.result.run_dir / "metrics.jsonl"));
  if (of.command.train.load_best_model_at_end && of.best != nullptr)
    card.kept = {.step = of.best->step, .metric = of.best->metric, .value = *of.best->value};
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
