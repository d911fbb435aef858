#include <ATen/Parallel.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "commands.h"
#include "device_memory.h"
#include "memory_advice.h"
#include "rank_report.h"
#include "run_parts.h"
#include "run_result.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/data_problems.h"
#include "sftrun/data/small_data.h"
#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/launch/gpu_meter.h"
#include "sftrun/launch/status.h"
#include "sftrun/launch/stop_signals.h"
#include "sftrun/launch/worker_env.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/observe/model_card.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/observe/run_summary.h"
#include "sftrun/observe/system.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/quant_notes.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/train/identity.h"
#include "sftrun/train/run_length.h"
#include "sftrun/train/trainer.h"
#include "sftrun/weights/adapter_base.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/adapter_readers.h"
#include "sftrun/weights/fingerprint.h"
#include "sftrun/weights/gguf_source.h"
#include "sftrun/weights/vllm_adapter.h"
#include "weight_hashing.h"

/// One rank of a training run, from its configuration to its final adapter.
namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void configure_logging(const launch::WorkerEnv& env, const fs::path& run_dir) {
  log::Options options;
  if (env.supervised) {  // the launcher keeps and shows
    options.console = log::Level::kDebug;
  } else {
    make_directories(run_dir / "logs");
    options.console = env.rank == 0 ? log::Level::kInfo : log::Level::kError;
    options.file = run_dir / "logs" / fmt::format("rank-{}.log", env.rank);
    if (env.world_size > 1) options.rank = env.rank;
  }
  log::configure(options);
}

/// LibTorch's warnings about lost connections print C++ stack frames. Whatever ends the run is
/// thrown, and reported by us. A level that the user has set stays.
void quiet_libtorch() {
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
}

std::string choose_backend(config::CommBackend wanted, at::Device device) {
  if (wanted == config::CommBackend::kNccl) {
    if (device.is_cpu()) {
      throw ConfigError("NCCL needs GPUs and this run computes on the CPU", "parallel.backend",
                        "use gloo or auto");
    }
    return "nccl";
  }
  if (wanted == config::CommBackend::kGloo) return "gloo";
  return device.is_cuda() ? "nccl" : "gloo";
}

std::string dtype_choice(config::DTypeChoice dtype) {
  switch (dtype) {
    case config::DTypeChoice::kFp32:
      return "fp32";
    case config::DTypeChoice::kBf16:
      return "bf16";
    case config::DTypeChoice::kFp16:
      return "fp16";
    case config::DTypeChoice::kAuto:
      return "auto";
  }
  invariant_failed(__FILE__, __LINE__, "a known dtype");
}

config::DTypeChoice choice_of(at::ScalarType dtype) {
  return dtype == at::kFloat      ? config::DTypeChoice::kFp32
         : dtype == at::kBFloat16 ? config::DTypeChoice::kBf16
                                  : config::DTypeChoice::kFp16;
}

std::unique_ptr<parallel::Strategy> strategy_of(const config::RunConfig& config,
                                                parallel::Communicator& comm,
                                                model::Decoder& decoder) {
  const model::Trains trains = decoder.options().trains;
  return parallel::make_strategy(
      {.strategy = config.parallel.strategy,
       .bucket_cap_bytes = config.train.ddp_bucket_cap_mb << 20,
       .overlaps_reduction = trains == model::Trains::kFull || trains == model::Trains::kPartial},
      comm, {decoder.parameters(), decoder.units()});
}

/// Threads that prepare data.
int data_threads(const config::TrainConfig& train) {
  return train.dataloader_num_workers > 0 ? static_cast<int>(train.dataloader_num_workers)
                                          : at::get_num_threads();
}

/// The data of a run.
struct Data {
  std::optional<data::Dataset> train, val;  // train: unless it is streamed
  std::unique_ptr<train::Batches> batches;
  std::string fingerprint;  // of what is trained on
  train::NamedFingerprints parts;
};

Data load_data(const config::RunConfig& config, const data::TextModel& text,
               const nlohmann::ordered_json& position) {
  Data loaded;
  const int num_threads = data_threads(config.train);
  const auto load = [&](const std::vector<config::DataSource>& sources, bool is_validation) {
    return data::load_dataset(config, sources, is_validation, text, num_threads);
  };
  data::ProblemCollector problems;
  if (!config.data.val.empty()) {
    problems.run([&] { loaded.val = load(config.data.val, /*is_validation=*/true); });
    if (!loaded.val) log::info("data.val has errors; they are reported when data.train is read");
  }
  if (config.data.streaming) {
    std::unique_ptr<train::StreamedBatches> streamed;
    problems.run([&] {
      streamed = std::make_unique<train::StreamedBatches>(config, text, num_threads, position);
    });
    problems.throw_if_any();
    loaded.fingerprint = streamed->fingerprint();
    loaded.parts = streamed->file_hashes();
    loaded.batches = std::move(streamed);
    return loaded;
  }
  problems.run([&] { loaded.train = load(config.data.train, /*is_validation=*/false); });
  problems.throw_if_any();
  if (config.data.val_split > 0) {
    auto [first, second] = data::split_dataset(*loaded.train, config.data.val_split,
                                               static_cast<uint64_t>(config.data.seed));
    log::info("data.val_split: {} examples to train on, {} held out to validate on",
              first.examples().size(), second.examples().size());
    loaded.train = std::move(first);
    loaded.val = std::move(second);
  }
  loaded.fingerprint = loaded.train->fingerprint();
  for (const data::DatasetPart& part : loaded.train->parts())
    loaded.parts.emplace_back(part.name, part.fingerprint);
  return loaded;
}

train::ModelIdentity model_identity(const weights::Checkpoint& checkpoint,
                                    const data::TextModel& text) {
  const text::RenderOptions& texts = text.render_defaults;
  return {.configuration = checkpoint.configuration(),
          .layout = weights::layout_fingerprint(checkpoint),
          .tokenizer = xxh3_128(text.tokenizer->to_json()),
          .chat_template = Fingerprint()
                               .add(text.chat_template ? text.chat_template->source() : "")
                               .add(texts.bos_token)
                               .add(texts.eos_token)
                               .add(texts.unk_token)
                               .add(texts.pad_token)
                               .hex(),
          .chat_template_source = text.chat_template ? text.chat_template->source() : ""};
}

std::string absolute_path(const fs::path& path) {
  return fs::absolute(path).lexically_normal().string();
}

/// What identifies the base model to whoever loads the adapter: of a GGUF file, which few of them
/// read, the model that it was converted from.
void name_base(weights::AdapterConfig& adapter, const config::ModelConfig& model,
               const fs::path& path) {
  std::error_code code;
  const auto source =
      fs::is_directory(path, code) ? std::nullopt : weights::source_repository(path);
  adapter.revision = source ? "" : model.revision;
  adapter.base_model_name_or_path = source                         ? *source
                                    : fs::exists(model.name, code) ? absolute_path(model.name)
                                                                   : model.name;
}

class Worker {
 public:
  explicit Worker(const nlohmann::json& request)
      : request_(request),
        env_(launch::worker_env()),
        config_(config::from_json(nlohmann::ordered_json(request.at("config")))),
        model_path_(request.at("model_path").get<std::string>()),
        run_dir_(config_.output.dir) {}

  int run() {
    configure_logging(env_, run_dir_);
    set_threads(request_);
    compute_ = choose_compute(get<std::string>(request_, "device").value_or("auto"),
                              dtype_choice(config_.model.dtype), env_.local_rank);
    config_.model.dtype = choice_of(compute_.dtype);
    if (!meet_other_ranks()) return stop_.exit_code();
    tell("loading");
    checkpoint_ = weights::Checkpoint::open(model_path_);
    config_.train.router_aux_loss_coef =
        spec::aux_loss_coef(config_.train.router_aux_loss_coef, checkpoint_->arch().mixture);
    config_.tuning.quant = plan::resolved_quant(config_.tuning, weights::block_kinds(*checkpoint_));
    config_.model.attention = plan::resolved_attention(config_.model.attention);
    hashing_.emplace(checkpoint_, env_);
    warn_of_unpacking();
    const auto resume_from = find_resume();
    const std::string& start = config_.tuning.lora.init_from;
    if (is_main() && !start.empty() && !resume_from) {
      weights::require_own_base(*checkpoint_, model_path_, start);
      warn_of_another_base(start, *checkpoint_);
    }
    tell("tokenizing");
    std::optional<train::TrainState> saved;
    if (resume_from) saved = train::read_train_state(*resume_from);
    rendered_at_unix_s_ = rendering_time(saved);
    data::TextModel text = text_model_of(*checkpoint_, config_.model.chat_template);
    if (!config_.model.chat_template.empty()) configured_template_ = text.chat_template->source();
    text.render_defaults.now_unix_s = rendered_at_unix_s_;
    data_ = load_data(config_, text, saved ? saved->data_position : nlohmann::ordered_json());
    fit_batches_to_data(saved);
    if (const int code = stop_before_training()) return code;
    identity_ = train::identity_of(config_, model_identity(*checkpoint_, text), data_.fingerprint,
                                   data_.val ? data_.val->fingerprint() : "", data_.parts);
    require_same_on_all_ranks();
    if (resume_from) {
      require_resumable(*resume_from, *saved);
      require_length(*resume_from, *saved);
    }
    tell("loading");
    model::DecoderOptions options = decoder_options(config_, compute_, checkpoint_.get());
    if (resume_from && options.lora.pissa)
      options.pissa_from = train::principal_parts_of(*resume_from);
    decoder_ = load_decoder(checkpoint_, options);
    if (!config_.tuning.lora.init_from.empty() && !resume_from) {
      model::load_adapter_weights(*decoder_, config_.tuning.lora.init_from);
      log::info("adapter initialised from {}", config_.tuning.lora.init_from);
    }
    const bool knows_weights = learn_weights();
    if (const int code = stop_before_training()) return code;
    SFTRUN_CHECK(knows_weights);  // else rank 0 was stopped, and with it all
    if (resume_from) {
      require_resumable(*resume_from, *saved);
      log::info("resuming from {}", resume_from->string());
    }
    return train(resume_from);
  }

  /// Under launchers that leave the other ranks running, they learn that this one has failed.
  void abandon(const std::string& why) noexcept { comm_.abandon(why); }

 private:
  bool is_main() const { return env_.rank == 0; }

  void tell(const char* phase) {
    launch::Status status;
    status.phase = launch::parse_phase(phase).value_or(launch::Phase::kLoading);
    status_.write(status);
    comm_.set_activity(phase);
  }

  /// @return false where a stop was requested while the ranks were waited for
  bool meet_other_ranks() {
    try {
      comm_ = parallel::Communicator::connect(
          {.rank = env_.rank,
           .world_size = env_.world_size,
           .master_addr = env_.master_addr,
           .master_port = env_.master_port,
           .is_one_machine = env_.local_world_size == env_.world_size},
          choose_backend(config_.parallel.backend, compute_.device), compute_.device,
          {.timeout_s = parse_duration_s(config_.parallel.timeout).value(),
           .stop_requested = [this] { return stop_.requested(); }});
      return true;
    } catch (const parallel::StoppedWaiting&) {
      if (is_main()) log::info("stopped before the first step; nothing was lost");
      return false;
    }
  }

  /// The exit code of a stop that any rank was asked for while the run was being prepared; 0: none.
  int stop_before_training() {
    double code = 0;
    for (const auto& rank : comm_.all_gather({static_cast<double>(stop_.exit_code())}))
      code = std::max(code, rank[0]);
    if (code != 0 && is_main()) log::info("stopped before the first step; nothing was lost");
    return static_cast<int>(code);
  }

  /// Small data sets have smaller steps, so that there are some; a run that goes on keeps its own.
  void fit_batches_to_data(const std::optional<train::TrainState>& saved) {
    if (config_.data.streaming) return;
    const nlohmann::json was = saved ? saved->identity.value("config", nlohmann::json()) : nullptr;
    const auto of_checkpoint = [&](const char* key) {
      return was.is_object() ? get<int64_t>(was, key) : std::nullopt;
    };
    config::TrainConfig& train = config_.train;
    const bool is_counted =
        train.max_steps.has_value();  // whoever says how many has enough of them
    const data::EpochSize epoch = data::epoch_size(config_, *data_.train);
    if (request_.value("steps_are_auto", false)) {
      const int64_t target =
          of_checkpoint("train.global_batch_size")
              .value_or(is_counted ? config::kTargetGlobalBatch : data::target_batch(epoch));
      config::set_target_batch(train, target, {get<int64_t>(request_, "batch_size")},
                               env_.world_size, request_.at("max_micro_batch").get<int64_t>());
    }
    config::AutoInt& tokens = config_.data.bin_tokens;
    if (!config_.data.packing || tokens.value) return;
    const int64_t most = config_.model.max_seq_len;
    const int64_t fitting = data::bin_tokens(epoch, *train.global_batch_size.value, most);
    tokens.value = of_checkpoint("data.bin_tokens").value_or(is_counted ? most : fitting);
    if (*tokens.value < most && is_main()) {
      log::info(
          "a small data set ({} tokens an epoch): bins hold {} tokens, not {}, so that an epoch "
          "has "
          "more optimizer steps (data.bin_tokens)",
          format_count(static_cast<uint64_t>(epoch.tokens)), *tokens.value, most);
    }
  }

  void require_same_on_all_ranks() {
    const std::string mine =
        Fingerprint().add(identity_.dump()).add(config::to_json(config_).dump()).hex();
    const double head = static_cast<double>(
        std::stoull(mine.substr(0, 13), nullptr, 16));  // 52 bits: exact in fp64
    const auto ranks = comm_.all_gather({head});
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
      if (ranks[rank][0] == ranks[0][0]) continue;
      throw ConfigError(
          fmt::format("rank {} sees another model, data set or configuration than rank 0", rank),
          {}, "all ranks must read the same files and flags");
    }
  }

  /// Weights that train are dense.
  void warn_of_unpacking() const {
    if (config_.tuning.trains_adapter() || !is_main()) return;
    const std::string packed = packed_format(*checkpoint_);
    if (packed.empty()) return;
    log::warn(
        "the model's files hold matrices in {}: what trains whole starts from the values that "
        "these were rounded to, unpacked",
        packed);
  }

  /// Rank 0 decides: the ranks may see the folder at different moments.
  std::optional<fs::path> find_resume() {
    const std::string resume = get<std::string>(request_, "resume").value_or("auto");
    if (request_.value("overwrite", false)) {
      if (is_main()) overwrite();
      comm_.barrier("overwrite");
      return std::nullopt;
    }
    if (resume != "auto" && resume != "never") return explicit_checkpoint(resume);
    double step = 0;
    if (is_main()) {
      const train::CheckpointStore store(run_dir_ / "checkpoints");
      if (resume == "never" && store.holds_any()) {
        throw ConfigError(
            "the run directory already holds checkpoints", run_dir_.string(),
            "choose another output.dir, resume with --resume auto, or move the old run aside with "
            "--overwrite");
      }
      if (const auto latest = store.latest())
        step = static_cast<double>(train::read_train_state(*latest).step);
      else
        require_no_results();
    }
    const auto from_step = static_cast<int64_t>(comm_.all_gather({step})[0][0]);
    if (from_step == 0) return std::nullopt;
    return train::CheckpointStore(run_dir_ / "checkpoints").path_of(from_step);
  }

  fs::path explicit_checkpoint(const std::string& resume) const {
    const fs::path from(resume);
    if (!fs::exists(from / "state.json")) {
      throw ConfigError("there is no checkpoint to resume from", from.string(),
                        "name a folder like checkpoints/step-000100");
    }
    if (is_main()) train::verify_checkpoint(from);  // reads every byte: once, not on every rank
    return from;
  }

  void require_no_model() const {
    for (const char* name : {"config.json", "adapter_config.json"}) {
      if (!fs::exists(run_dir_ / name)) continue;
      throw ConfigError("output.dir is the directory of a model or an adapter itself",
                        (run_dir_ / name).string(), "choose another output.dir");
    }
  }

  /// A run that has no checkpoint has no results either: these are another's.
  void require_no_results() const {
    require_no_model();
    for (const char* name : {"adapter", "model"}) {
      if (!fs::exists(run_dir_ / name)) continue;
      throw ConfigError(
          fmt::format("the run directory holds {} but no checkpoint of this run", name),
          (run_dir_ / name).string(),
          "choose another output.dir, or move this aside with --overwrite");
    }
  }

  void overwrite() const {
    require_no_model();
    if (const auto aside = set_run_aside(run_dir_); !aside.empty())
      log::info("the earlier run in {} is now {}", run_dir_.string(), aside.string());
  }

  /// What templates that print the date see: one moment for all ranks and all parts of a run, so
  /// that its tokens stay.
  int64_t rendering_time(const std::optional<train::TrainState>& saved) {
    const int64_t mine = saved ? saved->rendered_at_unix_s : static_cast<int64_t>(unix_time_s());
    return static_cast<int64_t>(comm_.all_gather({static_cast<double>(mine)})[0][0]);
  }

  void require_resumable(const fs::path& from, const train::TrainState& saved) const {
    train::require_same_identity(saved.identity, identity_, from.string(),
                                 {.changed_data = request_.value("allow_changed_data", false),
                                  .backend_change = request_.value("allow_backend_change", false),
                                  .changed_length = train::length_in(saved.identity).has_value()});
  }

  /// More epochs or steps than the run had when the checkpoint was written.
  void require_length(const fs::path& from, const train::TrainState& saved) const {
    const auto was = train::length_in(saved.identity);
    if (!was || *was == train::length_of(config_.train)) return;
    config::RunConfig before = config_;
    before.train.epochs = was->epochs;
    before.train.max_steps = was->max_steps;
    train::require_length(config_.train,
                          {.steps_done = saved.step,
                           .steps_before = num_steps(before),
                           .steps_now = num_steps(config_)},
                          request_.value("allow_changed_length", false), from.string());
  }

  int64_t num_steps(const config::RunConfig& config) const {
    if (config.data.streaming) return config.train.max_steps.value();
    return train::PlannedBatches(config, *data_.train).total_steps();
  }

  /// Completes the identity by the weights, whose bytes were read while the model was loaded. False
  /// when rank 0 was asked to stop meanwhile.
  bool learn_weights() {
    const auto files = hashing_->get(comm_, [&] { return stop_.exit_code() != 0; });
    if (!files) return false;
    std::vector<std::pair<std::string, std::string>> named;
    for (const weights::FileHash& file : *files) named.emplace_back(file.name, file.hash);
    train::add_weights(identity_, named);
    base_fingerprint_ = weights::fingerprint(*checkpoint_, *files);
    return true;
  }

  int train(const std::optional<fs::path>& resume_from) {
    train::TrainerInputs inputs;
    inputs.config = config_;
    inputs.run_dir = run_dir_;
    inputs.decoder = decoder_.get();
    inputs.comm = &comm_;
    strategy_ = strategy_of(config_, comm_, *decoder_);
    inputs.strategy = strategy_.get();
    if (!data_.batches)
      data_.batches = std::make_unique<train::PlannedBatches>(config_, *data_.train);
    inputs.batches = data_.batches.get();
    inputs.val = data_.val ? &*data_.val : nullptr;
    inputs.identity = identity_;
    inputs.rendered_at_unix_s = rendered_at_unix_s_;
    if (decoder_->options().trains == model::Trains::kLora) {
      inputs.adapter = model::adapter_config_of(*decoder_, "");
      name_base(*inputs.adapter, config_.model, model_path_);
      held_base_ = held_base(config_, compute_, *checkpoint_, base_fingerprint_);
      inputs.adapter->held_base = held_base_->to_json();
      if (is_main() && held_base_->pissa() && !held_base_->form.empty()) {
        log::warn(
            "PiSSA takes the base apart, and what is left is held in {} and not kept: the "
            "adapter that is saved fits the model only roughly (docs/lora-variants.md)",
            held_base_->form);
      }
    }
    inputs.resume_from = resume_from;
    inputs.hooks.stop_exit_code = [&] { return stop_.exit_code(); };
    inputs.hooks.peak_memory_bytes = [&] { return peak_memory_bytes(compute_.device); };
    std::optional<launch::GpuMeter> meter;
    if (compute_.device.is_cuda())
      meter.emplace(kernels::cuda_kernels().card_bus_id(compute_.device));
    inputs.hooks.gpu_utilization = [&] {
      return meter ? meter->utilization_percent() : std::nullopt;
    };
    inputs.hooks.on_event = [&](const train::TrainEvent& event) { forward(event); };
    inputs.hooks.look_at_base = [&] { weights::require_finite(*checkpoint_, model_path_); };
    const RunResult result{run_dir_,    inputs.adapter, *checkpoint_,
                           model_path_, compute_.dtype, configured_template_};
    if (is_main()) require_disk_space(result, *decoder_, config_.train);
    reset_tensor_peak(compute_.device);
    static_bytes_ = tensor_memory(compute_.device).allocated_bytes;
    train::Trainer trainer(std::move(inputs));
    describe(trainer);
    report_.started_at = unix_time_s();
    write_report(trainer, "running", 0, 0);
    const train::TrainOutcome outcome = trainer.run();
    const bool was_complete = outcome.first_step == trainer.total_steps();
    if (is_main() && outcome.exit_code == 0 && !(was_complete && result.exists())) {
      export_result(result, *decoder_, card_of(result, trainer),
                    train::CheckpointStore(run_dir_ / "checkpoints").path_of(outcome.last_step));
    }
    const char* status = outcome.exit_code == 0     ? "done"
                         : outcome.exit_code == 130 ? "interrupted"
                                                    : "stopped";
    report_.finished_at = unix_time_s();
    write_report(trainer, status, outcome.first_step, outcome.last_step);
    comm_.leave();
    if (is_main()) conclude(outcome, trainer.total_steps(), result);
    if (is_main()) require_parts(outcome);
    return outcome.exit_code;
  }

  /// The result's README.md.
  std::string card_of(const RunResult& result, const train::Trainer& trainer) const {
    observe::ModelCard card;
    card.base_model = result.adapter ? result.adapter->base_model_name_or_path : config_.model.name;
    card.is_on_hub = !fs::path(card.base_model).is_absolute() && !fs::exists(card.base_model);
    card.is_adapter = result.adapter.has_value();
    card.is_quantised = card.is_adapter && !held_base_->form.empty();
    card.version = SFTRUN_VERSION;
    for (const config::DataSource& source : config_.data.train) {
      const fs::path path(source.path);
      card.data.push_back(fs::exists(path) ? path.filename().string() : source.path);
    }
    card.settings = card_settings(trainer);
    card.summary = observe::read_run_summary(run_dir_ / "metrics.jsonl");
    return observe::to_markdown(card);
  }

  /// Of the configuration what somebody who repeats the run would look for first.
  std::vector<std::pair<std::string, std::string>> card_settings(
      const train::Trainer& trainer) const {
    const nlohmann::ordered_json all = config::to_json(config_);
    std::vector<std::pair<std::string, std::string>> settings;
    const auto add = [&](const char* pointer, const char* name) {
      const auto& value = all.at(nlohmann::ordered_json::json_pointer(pointer));
      if (value.is_null()) return;
      settings.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    };
    add("/tuning/mode", "tuning.mode");
    if (config_.tuning.trains_adapter()) {
      add("/tuning/lora/r", "tuning.lora.r");
      add("/tuning/lora/alpha", "tuning.lora.alpha");
      add("/tuning/lora/dropout", "tuning.lora.dropout");
      add("/tuning/lora/target_modules", "tuning.lora.target_modules");
      settings.emplace_back("base precision", held_base_->words());
    }
    settings.emplace_back("optimizer steps", std::to_string(trainer.total_steps()));
    add("/train/epochs", "train.epochs");
    add("/train/global_batch_size", "train.global_batch_size");
    add("/model/max_seq_len", "model.max_seq_len");
    add("/data/packing", "data.packing");
    add("/data/bin_tokens", "data.bin_tokens");
    add("/data/loss_on", "data.loss_on");
    add("/train/learning_rate", "train.learning_rate");
    add("/train/scheduler", "train.scheduler");
    add("/train/optimizer", "train.optimizer");
    add("/train/weight_decay", "train.weight_decay");
    add("/train/seed", "train.seed");
    settings.emplace_back("dtype", dtype_name(compute_.dtype));
    settings.emplace_back("processes", std::to_string(env_.world_size));
    return settings;
  }

  /// What was removed from the run directory meanwhile is missed at the end, and not in silence.
  void require_parts(const train::TrainOutcome& outcome) const {
    const std::vector<std::string> missing =
        missing_parts(run_dir_, config_.output.tensorboard, outcome.last_step);
    if (missing.empty()) return;
    const std::string what =
        "removed from the run directory during the run: " + join(missing, ", ");
    if (outcome.exit_code != 0) return log::warn("{}", what);
    throw DataError(what, run_dir_.string(),
                    "the result is complete; only the removed files are lost");
  }

  void forward(const train::TrainEvent& event) {
    launch::Status status;
    status.phase = launch::parse_phase(event.phase).value_or(launch::Phase::kTraining);
    status.step = event.step;
    status.total_steps = event.total_steps;
    status.loss = event.loss;
    status.tokens_per_second = event.tokens_per_second;
    status.eta_s = event.eta_s;
    status.memory_bytes = event.memory_bytes;
    status_.write(status);
    comm_.set_activity(fmt::format("{}, {} steps done", event.phase, event.step));
  }

  void describe(const train::Trainer& trainer) {
    if (!is_main()) return;
    write_file_atomically(run_dir_ / "config.resolved.yaml", config::to_yaml(config_));
    const kernels::ParameterStore& store = decoder_->parameters();
    log::info("model {} ({}, {} layers{}), backend {}, {} on {}, {} thread{}", config_.model.name,
              decoder_->arch().family, decoder_->arch().num_layers,
              held_base_ ? fmt::format("; frozen, in {}: {}", held_base_->words(),
                                       format_bytes(decoder_->base_bytes()))
                         : "",
              backend_name(), dtype_name(compute_.dtype), device_name(compute_.device),
              at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s");
    const model::BaseForm& base = decoder_->options().base;
    if (const std::string idle =
            plan::idle_quant_keys(config_.tuning, base.keep_stored && !base.quant);
        !idle.empty())
      log::warn("{}", idle);
    int64_t model_values = 0;
    for (const spec::TensorSpec& tensor : spec::tensor_specs(decoder_->arch()))
      model_values += tensor.numel();
    const auto trained = static_cast<uint64_t>(store.numel()),
               of_model = static_cast<uint64_t>(model_values),
               all = held_base_ ? trained + of_model : of_model;
    log::info("trainable parameters: {} of {} ({:.2f}%) in {} tensors ({})", format_count(trained),
              format_count(all), 100 * static_cast<double>(trained) / static_cast<double>(all),
              store.parameters().size(),
              config::to_json(config_)["tuning"]["mode"].get<std::string>());
    log::info("{} steps: batch_size {} x grad_accum {} x world_size {} = {} {} per step",
              trainer.total_steps(), *config_.train.batch_size.value,
              *config_.train.grad_accum.value, env_.world_size,
              *config_.train.global_batch_size.value, bins_in_words());
    warn_of_few_steps(trainer);
    if (config_.tuning.trains_adapter()) say_what_vllm_reads();
    if (config_.train.loraplus_lr_ratio && decoder_->embedding().lora) {
      log::warn(
          "with LoRA+ the embedding's update learns at {:g} at most, as with peft; without "
          "train.loraplus_lr_ratio it learns as the others",
          train::kLoraPlusEmbeddingRate);
    }
  }

  std::string bins_in_words() const {
    if (!config_.data.packing) return "examples";
    return fmt::format("packed sequences of {} tokens",
                       config_.data.bin_tokens.value.value_or(config_.model.max_seq_len));
  }

  void warn_of_few_steps(const train::Trainer& trainer) const {
    constexpr int64_t kFewSteps = 10;
    if (trainer.learns_nothing()) {
      log::warn(
          "nothing will be trained: the learning rate of every step is 0; raise "
          "train.learning_rate "
          "or train.epochs, or set train.warmup_from: first_step");
    } else if (trainer.total_steps() < kFewSteps && !config_.train.max_steps) {
      log::warn(
          "the run has only {} optimizer steps: the model will learn little; lower "
          "train.global_batch_size ({}){} or raise train.epochs ({:g})",
          trainer.total_steps(), *config_.train.global_batch_size.value,
          config_.data.packing
              ? fmt::format(" or data.bin_tokens ({})", *config_.data.bin_tokens.value)
              : "",
          config_.train.epochs);
    }
  }

  /// The adapter is written in PEFT's layout, of which vLLM reads a part.
  void say_what_vllm_reads() {
    const auto config = model::adapter_config_of(*decoder_, "");
    const std::set<std::string> adapted = adapted_modules();
    const auto is_adapted = [&](const std::string& module) { return adapted.contains(module); };
    if (const auto refusal = weights::vllm_refusal(
            config.lora, !config.lora.modules_to_save.empty(), decoder_->arch(), is_adapted))
      return log::info("{}", refusal->advice());
    const auto reading = weights::vllm_reading(decoder_->arch(), is_adapted);
    if (!reading) return;
    reading->is_silent ? log::warn("{}", reading->advice()) : log::info("{}", reading->advice());
  }

  /// Modules, and experts' tensors, that have an update.
  std::set<std::string> adapted_modules() const {
    std::set<std::string> adapted;
    if (decoder_->embedding().lora) adapted.insert(spec::embedding_module(decoder_->arch()));
    for (const kernels::Linear* linear : decoder_->adapted_linears()) adapted.insert(linear->name);
    for (model::Layer& layer : decoder_->layers()) {
      for (const kernels::ExpertMatrix* matrix : layer.experts()) {
        if (matrix->lora) adapted.insert(matrix->name);
      }
    }
    return adapted;
  }

  std::string backend_name() const {
    return config_.tuning.backend == config::TuningBackend::kFused ? "fused" : "bnb";
  }

  void write_report(const train::Trainer& trainer, const char* status, int64_t first_step,
                    int64_t last_step) {
    const TensorMemory memory = tensor_memory(compute_.device);
    const uint64_t held = memory.peak_bytes > static_bytes_ ? memory.peak_bytes - static_bytes_ : 0;
    const uint64_t optimizer = trainer.optimizer_bytes();
    const kernels::FlatValues& own = strategy_->owned().flat;
    const uint64_t copy_bytes = own.compute.is_same(own.master) ? 0 : own.compute.nbytes();
    report_.ranks =
        gather_rank_reports(comm_, {.base = decoder_->base_bytes(),
                                    .trainable = own.master.nbytes() + copy_bytes,
                                    .gradients = own.grad.nbytes(),
                                    .optimizer = optimizer,
                                    .activations_peak = held > optimizer ? held - optimizer : 0});
    if (!is_main()) return;
    report_.version = SFTRUN_VERSION;
    report_.backend = backend_name();
    report_.comm_backend = env_.world_size > 1 ? comm_.backend() : "";
    report_.strategy = strategy_->name();
    report_.dtype = dtype_name(compute_.dtype);
    report_.base_model = config_.model.name;
    report_.base_model_path = absolute_path(model_path_);
    report_.base_model_fingerprint = base_fingerprint_;
    if (held_base_) {
      report_.base = held_base_->to_json();
      report_.base.erase("norms");  // for the adapter, which goes elsewhere
      report_.base.erase("layout");
    }
    report_.dataset_fingerprint = data_.fingerprint;
    report_.config_fingerprint = Fingerprint().add(identity_["config"].dump()).hex();
    report_.world_size = env_.world_size;
    report_.device_names.assign(static_cast<size_t>(env_.world_size), device_name(compute_.device));
    report_.status = status;
    report_.first_step = first_step;
    report_.last_step = last_step;
    observe::write_run_report(run_dir_ / "run.json", report_);
  }

  /// Whether the base's own files are in this format: "nf4".
  bool is_stored_so(const std::string& form) const {
    const auto& tensors = checkpoint_->tensors();
    return std::any_of(tensors.begin(), tensors.end(), [&](const weights::TensorInfo& tensor) {
      return ascii_lower(tensor.format) == form && checkpoint_->packed(tensor.name);
    });
  }

  void conclude(const train::TrainOutcome& outcome, int64_t total_steps,
                const RunResult& result) const {
    if (outcome.exit_code != 0) {
      log::info("stopped after step {} of {} with a checkpoint; rerun the same command to resume",
                outcome.last_step, total_steps);
      return;
    }
    if (outcome.first_step == total_steps) log::info("this run was already complete");
    for (const std::string& line :
         observe::lines_of(observe::read_run_summary(run_dir_ / "metrics.jsonl")))
      log::info("{}", line);
    if (const int64_t bad = data_.batches->num_bad_records(); bad > 0)
      log::info("{} bad record{} left out of the training data (data.bad_records: skip)", bad,
                bad == 1 ? "" : "s");
    log::info("{}: {}", result.adapter ? "adapter" : "model", result.target().string());
    log::info("  try it: sftrun generate {} {} --prompt \"…\"",
              result.adapter ? "--adapter" : "--model", shell_word(run_dir_.string()));
    if (!result.adapter) return;
    log::info("  base precision during training: {}", held_base_->words());
    const std::set<std::string> adapted = adapted_modules();
    weights::WrittenAdapter written{
        *result.adapter, checkpoint_->arch(), model_path_, result.target(),
        [&](const std::string& module) { return adapted.contains(module); }};
    if (held_base_->tuning.quantises_base() && !is_stored_so(held_base_->form)) {
      written.quantised_to = held_base_->tuning.quant_name();
      written.quantize_command = config::quantize_command(held_base_->tuning, model_path_.string());
      written.dense_when_written = config::dense_when_written(
          held_base_->tuning, checkpoint_->arch().mixture.num_experts > 0);
    }
    written.takes_base_apart = held_base_->pissa();
    for (const std::string& line : weights::where_it_loads(written)) log::info("  {}", line);
  }

  const nlohmann::json& request_;
  launch::WorkerEnv env_;
  config::RunConfig config_;
  fs::path model_path_;  // of config_.model.name, which may be a hub's name
  fs::path run_dir_;
  Compute compute_;
  parallel::Communicator comm_;
  launch::StopSignals stop_;
  launch::StatusWriter status_;
  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  int64_t rendered_at_unix_s_ = 0;
  Data data_;
  std::optional<WeightHashing> hashing_;
  std::string base_fingerprint_;
  nlohmann::ordered_json identity_;
  std::optional<std::string> configured_template_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::Strategy> strategy_;
  std::optional<config::HeldBase> held_base_;  // of a run that trains an adapter
  observe::RunReport report_;
  uint64_t static_bytes_ = 0;
};

}  // namespace

int run_worker(const nlohmann::json& request) {
  quiet_libtorch();
  Worker worker(request);
  try {
    return worker.run();
  } catch (...) {
    // Told while the communicator still stands: when it goes the other ranks fail too, and what
    // they say must not be the first word.
    const Failure failure = report_failure("worker");
    worker.abandon(failure.text);
    return failure.code;
  }
}

}  // namespace sftrun::engine
