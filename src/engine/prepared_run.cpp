#include "prepared_run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "determinism.h"
#include "host_memory.h"
#include "memory_advice.h"
#include "rollouts.h"
#include "sftrun/config/reference_model.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/image_input.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/reward/rewards.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/train/embeddings.h"
#include "sftrun/weights/fingerprint.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {

void resolve_auto(config::RunConfig& config, const weights::Checkpoint& checkpoint) {
  if (config.train.objective_info().has_aux_loss) {
    config.train.router_aux_loss_coef =
        spec::aux_loss_coef(config.train.router_aux_loss_coef, checkpoint.arch().mixture);
  } else if (checkpoint.arch().mixture.aux_loss_coef.value_or(0) > 0) {
    config.train.router_aux_loss_coef = 0;
  }
  config.tuning.quant = plan::resolved_quant(config.tuning, weights::block_kinds(checkpoint));
}

void warn_of_unpacking(const config::TuningConfig& tuning, const weights::Checkpoint& checkpoint) {
  if (tuning.trains_adapter()) return;
  const std::string packed = weights::packed_format(checkpoint);
  if (packed.empty()) return;
  log::warn(
      "the model's files are quantised ({}); trained weights start from the dequantised values",
      packed);
}

namespace {

/// Threads that prepare data.
int data_threads(const config::TrainConfig& train) {
  return train.dataloader_num_workers > 0 ? static_cast<int>(train.dataloader_num_workers)
                                          : at::get_num_threads();
}

/// PiSSA: what each stage subtracted from its base, which the result contains.
void gather_principal_parts(model::Decoder& decoder, parallel::Strategy& strategy) {
  std::map<std::string, at::Tensor> parts;
  for (const layers::Parameter& parameter : decoder.parameters().parameters()) {
    if (parameter.role != TensorRole::kLoraA && parameter.role != TensorRole::kLoraB) continue;
    const auto found = decoder.principal_parts().find(parameter.name);
    // The ranks of a stage's shards have the same ones.
    const bool is_own = found != decoder.principal_parts().end() && strategy.mesh().shard() == 0;
    const at::Tensor own = is_own ? found->second.flatten() : at::empty({0}, at::kFloat);
    parts[parameter.name] =
        strategy.whole(own, 0, parameter.numel).view(parameter.shape).to(at::kCPU);
  }
  decoder.set_principal_parts(std::move(parts));
}

}  // namespace

namespace {

data::MediaKinds kinds_in(const data::Dataset* data) {
  return data == nullptr ? data::MediaKinds() : data->examples().media_kinds();
}

/// Streamed data are known by their first records alone.
/// @param train what the training data have
bool has_images(const PreparedRun& run, const data::MediaKinds& train) {
  if (!reads_images(*run.text)) return false;
  if (train.images || kinds_in(run.data.val_or_null()).images) return true;
  const config::DataConfig& data = run.config.data;
  return data.streaming &&
         data::begins_with_images(run.config, data.train, /*is_validation=*/false);
}

/// @throws ConfigError if all training examples with images or features were left out as too long
void require_some_that_fit(const PreparedRun& run, const char* key, const std::string& names,
                           const char* media) {
  if (run.config.data.streaming) return;
  const int64_t left_out = run.data.train->stats().num_media_left_out;
  if (left_out == 0) return;
  throw ConfigError(
      fmt::format(
          "{}, and all {} with {} were left out, because longer than model.max_seq_len = {}", names,
          counted(left_out, "training example"), media, run.config.model.max_seq_len),
      key, "raise model.max_seq_len" + data::way_to_smaller_images(*run.text));
}

/// Parts that get no gradient without an image, or without features.
/// @param has_features whether a record of the training data may have some
/// @throws ConfigError naming them if no record has one
void require_inputs_of_parts(const PreparedRun& run, bool has_features) {
  const TrainedParts parts = run.config.tuning.train_parts.trained();
  const bool has_projectors = !run.checkpoint->arch().projectors.empty();
  if (has_projectors && parts.projector && !has_features) {
    require_some_that_fit(run, "model.projectors", "the model has projectors of features",
                          "features");
    throw ConfigError("the model has projectors of features, and no record has features",
                      "model.projectors",
                      R"(write features in records, {"type": "features", "path": "a.npy"})");
  }
  const bool needs_images = parts.vision || (parts.projector && !has_projectors);
  if (run.has_images || !needs_images) return;
  require_some_that_fit(
      run, "tuning.train_parts",
      fmt::format("`tuning.train_parts` names {}", parts.vision ? "vision" : "projector"),
      "images");
  throw ConfigError(
      fmt::format(
          "`tuning.train_parts` names {}, and no {} has an image",
          parts.vision ? "vision" : "projector",
          run.config.data.streaming ? "record among the first 1000 of a data set" : "record"),
      "tuning.train_parts",
      "train on records with images, or set tuning.train_parts to [language]");
}

}  // namespace

void prepare_data(PreparedRun& run, const train::TrainState* saved,
                  const train::BatchRequest& batches, Rank& rank) {
  const std::string& configured = run.config.model.chat_template;
  data::TextModel& text = run.text.emplace(full_text_model(
      *run.checkpoint, run.model_path, configured, data::image_caps(run.config.data)));
  if (!configured.empty()) run.chat_template = text.chat_template->source();
  text.render_defaults.now_unix_s = run.rendered_at_unix_s;
  if (saved != nullptr) run.data_position = saved->data_position;
  data::warn_of_idle_template_variables(text, run.config.data.chat_template_kwargs);
  run.data =
      train::load_run_data(run.config, text, data_threads(run.config.train), run.data_position);
  const bool may_have_media = text.images != nullptr || text.features != nullptr;
  const data::MediaKinds in_train =
      may_have_media ? kinds_in(run.data.train_or_null()) : data::MediaKinds();
  run.has_images = has_images(run, in_train);
  if (rank.is_main()) reward::require_programs(run.config.train);
  if (rank.is_main()) reward::require_program(run.config.callbacks);
  if (run.config.train.has_rollouts() && rank.is_main()) {
    require_judgeable(run.config, *run.data.train);
    if (run.data.val) require_judgeable(run.config, *run.data.val);
  }
  if (run.config.train.objective_info().embeds() && run.data.train && rank.is_main() &&
      train::tells_nothing_apart(run.data.train->examples(), run.config.train.sequences()))
    log::warn(
        "data: the texts that fit the queries are all the same, or the queries are, so that there "
        "is nothing to tell apart and nothing is learnt: name other columns (data.fields), or add "
        "texts that do not fit (\"negative\")");
  run.deals_by_cost = run.has_images && (saved == nullptr || train::deals_by_cost(saved->identity));
  require_inputs_of_parts(run, in_train.features || run.config.data.streaming);
  if (rank.is_main()) run.leaves_template_unused = data::leaves_template_unused(run.config, text);
  if (run.config.data.streaming) return;
  const std::string notice =
      train::fit_batches_to_data(run.config, batches, data::epoch_size(run.config, *run.data.train),
                                 static_cast<int>(run.config.parallel.axes.data_parts()),
                                 saved != nullptr ? saved->identity : nullptr);
  if (!notice.empty() && rank.is_main()) log::info("{}", notice);
}

namespace {

/// The values of the adapter that the run starts from.   @return 0, or the exit code of a stop
int load_start(PreparedRun& run, const std::string& adapter, Rank& rank) {
  const auto assign = [&](const layers::Parameter& parameter, const at::Tensor& values) {
    run.strategy->assign(parameter, values);
  };
  if (const int code =
          rank.before_training([&] { model::load_adapter_weights(*run.decoder, adapter, assign); }))
    return code;
  if (!run.resume_from) log::info("adapter initialised from {}", adapter);
  return 0;
}

void keep_start(PreparedRun& run, const Rank& rank) {
  const model::Decoder& decoder = *run.decoder;
  const uint64_t before = run.strategy->stored_bytes().trainable;
  run.strategy->keep_start(decoder.backend().reads_masters || decoder.options().lora.dora);
  if (!rank.is_main()) return;
  const uint64_t kept = run.strategy->stored_bytes().trainable - before;
  log::info("reference model: the initial values of what trains are kept{}",
            kept == 0 ? " in host memory" : fmt::format(" ({})", format_bytes(kept)));
}

}  // namespace

int load_model(PreparedRun& run, Rank& rank) {
  if (run.config.train.deterministic && run.compute.device.is_cuda()) sum_in_fixed_order();
  model::DecoderOptions options = decoder_options(run.config, run.compute, run.checkpoint.get());
  options.with_vision = run.has_images;
  if (run.resume_from && options.lora.pissa)
    options.pissa_from = train::principal_parts_of(*run.resume_from);
  ModelDivision& division = *run.division;
  division.apply_to(options, run.checkpoint->arch(), run.config);
  const auto load = [&](const std::function<void()>& stop_point) {
    options.stop_point = stop_point;
    run.decoder = load_decoder(run.checkpoint, options);
  };
  if (const int code = load_together(rank, division, run.compute.device, load))
    return rank.told_before_training(code);
  if (options.with_vision)
    read_images(*run.decoder, *run.text, data_threads(run.config.train), &rank.activity());
  const int shards = division.mesh().shards();
  const bool keeps_start = config::keeps_start(run.config);
  if (division.shards() != nullptr && division.shards()->sharding().trained_on_host)
    require_host_memory(rank,
                        trained_host_bytes(*run.decoder, run.config.train, shards, keeps_start));
  run.strategy = division.make_strategy(run.config, *run.decoder);
  if (division.mesh().sizes().pp > 1 && options.lora.pissa)
    gather_principal_parts(*run.decoder, *run.strategy);
  const std::string& start = run.config.tuning.lora.init_from;
  if (!start.empty() && (config::starts_as_reference(run.config) || !run.resume_from))
    if (const int code = load_start(run, start, rank)) return code;
  if (keeps_start) keep_start(run, rank);  // before a checkpoint is read
  return 0;
}

bool add_weights(PreparedRun& run, WeightHashing& hashing, Rank& rank) {
  const auto files = hashing.get(rank.comm(), [&] { return rank.stop_exit_code() != 0; });
  if (!files) return false;
  train::NamedFingerprints named;
  for (const weights::FileHash& file : *files) named.emplace_back(file.name, file.hash);
  train::add_weights(run.identity, named);
  run.base_fingerprint = weights::fingerprint(*run.checkpoint, *files);
  return true;
}

}  // namespace sftrun::engine
