#include "trainer_setup.h"

#include "device_memory.h"
#include "sftrun/config/reference_model.h"
#include "sftrun/core/build_id.h"
#include "sftrun/core/error.h"
#include "sftrun/core/units.h"
#include "sftrun/data/image_input.h"
#include "sftrun/export/run_result.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/base_form.h"
#include "sftrun/plan/sequence_cost.h"
#include "sftrun/train/bin_cost.h"
#include "sftrun/train/on_policy_batches.h"
#include "sftrun/train/rollout_batches.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {
namespace {

/// Empty: steps are dealt in order.
data::BinCost bin_cost_of(const PreparedRun& run) {
  if (run.config.train.writes_answers())  // lengths differ a lot
    return [](const data::ExampleStore& examples, const data::Bin& bin) {
      return data::tokens_of(examples, bin);
    };
  if (!run.deals_by_cost) return {};
  const spec::ArchSpec& arch = run.checkpoint->arch();
  const auto tower = plan::TowerUse::of(run.config.tuning, arch, run.has_images);
  return train::bin_cost(plan::SequenceCost(arch, run.config, tower), run.text->images->processor,
                         arch.vision->patches.side);
}

std::optional<weights::EmbeddingSettings> embedding_settings(const config::RunConfig& config) {
  if (!config.train.objective_info().embeds()) return std::nullopt;
  return weights::EmbeddingSettings{.is_mean = config.train.pooling == config::Pooling::kMean,
                                    .normalizes = config.train.embed_normalize,
                                    .query_prompt = config.data.query_prompt,
                                    .document_prompt = config.data.document_prompt,
                                    .max_seq_length = config.model.max_seq_len};
}

}  // namespace

train::TrainerInputs trainer_inputs(PreparedRun& run, Rank& rank) {
  if (config::precomputes_reference(run.config.train))
    SFTRUN_CHECK(run.data.train && run.data.train->examples().reference_logps() != nullptr);
  train::TrainerInputs inputs;
  inputs.config = run.config;
  inputs.run_dir = run.run_dir();
  inputs.decoder = run.decoder.get();
  inputs.comm = &rank.comm();
  inputs.strategy = run.strategy.get();
  if (run.teacher) inputs.teacher = &*run.teacher->teacher;
  inputs.bin_cost = bin_cost_of(run);
  train::make_batches(run.data, run.config, inputs.bin_cost);
  inputs.batches = run.data.batches.get();
  inputs.local_world_size = rank.env().local_world_size;
  inputs.val = run.data.val_or_null();
  inputs.build = {.version = SFTRUN_VERSION, .id = build_id()};
  inputs.identity = run.identity;
  inputs.rendered_at_unix_s = run.rendered_at_unix_s;
  inputs.resume_from = run.resume_from;
  inputs.chat_template = run.chat_template;
  inputs.template_variables = data::template_variables(run.config.data);
  if (reads_images(*run.text)) inputs.image_caps = data::image_caps(run.config.data);
  inputs.embedding = embedding_settings(run.config);
  inputs.profiled_steps = run.profiled_steps;
  inputs.hooks.stop_exit_code = [&] { return rank.stop_exit_code(); };
  inputs.hooks.peak_memory_bytes = [&] { return peak_memory_bytes(run.compute.device); };
  inputs.hooks.on_event = [&](const train::TrainEvent& event) {
    run.tries_longest_batch = event.phase == std::string_view("fitting");
    rank.tell(event);
  };
  inputs.hooks.activity = &rank.activity();
  inputs.hooks.look_at_base = [&] { weights::require_finite(*run.checkpoint, run.model_path); };
  return inputs;
}

namespace {

config::BaseRecord base_record_of(const PreparedRun& run) {
  return model::base_record(run.config, dtype_name(run.compute.dtype), *run.checkpoint,
                            run.base_fingerprint, run.decoder->options().with_vision);
}

/// nullopt: other values than an adapter's are trained.
std::optional<weights::AdapterConfig> adapter_of(const PreparedRun& run) {
  if (run.decoder->options().trains != model::Trains::kLora) return std::nullopt;
  weights::AdapterConfig adapter = model::adapter_config_of(*run.decoder, "");
  exporting::name_base(adapter, run.config.model, run.model_path);
  adapter.base_record = base_record_of(run).to_json();
  return adapter;
}

}  // namespace

std::optional<config::BaseRecord> describe_adapter(const PreparedRun& run,
                                                   train::TrainerInputs& inputs) {
  inputs.adapter = adapter_of(run);
  if (!inputs.adapter) return std::nullopt;
  return base_record_of(run);
}

namespace {

AnsweringModel::Inputs answering_model(PreparedRun& run, Rank& rank) {
  return {.decoder = *run.decoder,
          .groups = run.division->groups(),
          .strategy = *run.strategy,
          .shards_weights = run.config.parallel.axes.shards_weights(),
          .rank = rank};
}

}  // namespace

std::unique_ptr<TrainingAnswers> training_answers(PreparedRun& run, Rank& rank) {
  if (!run.config.train.predict_with_generate || run.data.val_or_null() == nullptr) return nullptr;
  return std::make_unique<TrainingAnswers>(
      TrainingAnswers::Inputs{.config = run.config.train,
                              .text = *run.text,
                              .val = *run.data.val_or_null(),
                              .model = answering_model(run, rank)});
}

namespace {

TurnWriterInputs turn_writer_inputs(PreparedRun& run, Rank& rank) {
  return {.config = run.config,
          .text = *run.text,
          .model = answering_model(run, rank),
          .run_dir = run.run_dir(),
          .adapter = adapter_of(run)};
}

}  // namespace

std::unique_ptr<Rollouts> rollouts_of(PreparedRun& run, Rank& rank) {
  if (!run.config.train.has_rollouts()) return nullptr;
  auto rollouts = std::make_unique<Rollouts>(Rollouts::Inputs{.run = turn_writer_inputs(run, rank),
                                                              .train = *run.data.train,
                                                              .val = run.data.val_or_null()});
  run.data.batches = std::make_unique<train::RolloutBatches>(
      run.config, *run.data.train,
      [&rollouts = *rollouts](int64_t step, const std::vector<int64_t>& prompts) {
        return rollouts.write(step, prompts);
      },
      run.data_position);
  return rollouts;
}

std::unique_ptr<OwnAnswers> own_answers_of(PreparedRun& run, Rank& rank) {
  if (!run.config.train.has_own_answers()) return nullptr;
  SFTRUN_CHECK(run.teacher != nullptr);
  auto own = std::make_unique<OwnAnswers>(turn_writer_inputs(run, rank));
  train::make_batches(run.data, run.config);  // of the data, in order
  auto batches = std::make_unique<train::OnPolicyBatches>(
      run.config, std::move(run.data.batches), run.data.train_or_null(),
      [&own = *own](int64_t step, const std::vector<train::AskedExample>& asked) {
        return own.write(step, asked);
      });
  own->set_longest(batches->longest_answered());
  run.data.batches = std::move(batches);
  return own;
}

launch::EventCommandOptions event_commands(const config::RunConfig& config, const Rank& rank) {
  return {.command = rank.is_main() ? config.callbacks.command : "",
          .events = config.callbacks.events,
          .timeout_s = parse_duration_s(config.callbacks.timeout).value(),
          .run_dir = config.output.dir};
}

}  // namespace sftrun::engine
