#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "commands.h"
#include "device_memory.h"
#include "memory_advice.h"
#include "session.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/image_input.h"
#include "sftrun/foreign/load.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/train/image_loading.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/train/step_numbers.h"
#include "sftrun/train/step_profiler.h"
#include "synthetic_records.h"

/// Training throughput on synthetic records: forward, backward, clipping and optimizer, every
/// position but those of images labelled.
namespace sftrun::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// Seconds since this process was started, from /proc: what a user waits, libraries and all.
double seconds_since_process_start() {
  const std::string stat = read_text_file("/proc/self/stat");
  std::string fields = stat.substr(stat.rfind(')') + 2);
  for (int i = 0; i < 19; ++i)
    fields = fields.substr(fields.find(' ') + 1);  // field 22: starttime in clock ticks
  const double started = std::stod(fields) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return std::stod(read_text_file("/proc/uptime")) - started;
}

struct BenchConfig {
  config::RunConfig run;
  std::string dtype;
};

BenchConfig bench_config(const app::BenchRequest& request) {
  std::vector<std::string> overrides = {
      "tuning.lora.r=8", "tuning.lora.alpha=16",
      "tuning.lora.target_modules=[q_proj, k_proj, v_proj, o_proj]"};
  overrides.insert(overrides.end(), request.overrides.begin(), request.overrides.end());
  BenchConfig bench{foreign::config_from_overrides(overrides).config, request.compute.dtype};
  if (!bench.run.train.objective_info().is_cross_entropy) {
    const auto measured = config::objective_names(&config::ObjectiveInfo::is_cross_entropy);
    throw ConfigError(fmt::format("bench measures train.objective {} only", join(measured, ", ")),
                      "train.objective", "remove it");
  }
  if (bench.dtype == "auto" && bench.run.model.dtype != config::DTypeChoice::kAuto) {
    bench.dtype = bench.run.model.dtype == config::DTypeChoice::kFp32 ? "fp32" : "bf16";
  }
  return bench;
}

/// What is measured, before its weights are loaded.
struct BenchedModel {
  std::shared_ptr<const weights::Checkpoint> checkpoint;  ///< null: random weights
  spec::ArchSpec arch;
  std::filesystem::path folder;

  tokenizer::Tokenizer tokenizer() const {
    return checkpoint ? checkpoint->tokenizer() : tokenizer::Tokenizer::from_directory(folder);
  }
};

BenchedModel open_model_to_bench(const app::BenchRequest& request) {
  if (const auto& arch_path = request.arch) {
    const auto json = parse_python_json(read_utf8_file(*arch_path));
    if (json.is_discarded())
      throw DataError("not valid JSON", *arch_path, "--arch names a model's config.json");
    return {.checkpoint = nullptr,
            .arch = spec::ArchSpec::from_hf_config(json, *arch_path),
            .folder = std::filesystem::absolute(*arch_path).parent_path()};
  }
  std::shared_ptr<const weights::Checkpoint> checkpoint =
      weights::Checkpoint::open(request.model.value());
  const spec::ArchSpec& arch = checkpoint->arch();
  return {.checkpoint = checkpoint, .arch = arch, .folder = request.model.value()};
}

SyntheticRecords records_of(const app::BenchRequest& request, const BenchedModel& model,
                            const config::DataConfig& data) {
  if (!request.images) return {request.seq_len, model.arch.vocab_size};
  data::TextModel text;
  text.tokenizer = std::make_shared<const tokenizer::Tokenizer>(model.tokenizer());
  add_image_input(text, model.folder, model.arch, data::image_caps(data));
  require_reads_images(text, model.arch, model.folder, "--images on the command line");
  return {request.seq_len, model.arch.vocab_size,
          SyntheticImages(*request.images, text.images, *text.tokenizer)};
}

std::unique_ptr<model::Decoder> make_decoder(const BenchedModel& model,
                                             const config::RunConfig& run, const Compute& compute,
                                             const SyntheticRecords& records) {
  model::DecoderOptions options = decoder_options(run, compute, model.checkpoint.get());
  options.with_vision = records.images().has_value();
  auto decoder = model.checkpoint ? load_decoder(model.checkpoint, options)
                                  : model::Decoder::random(model.arch, options);
  if (options.with_vision)
    decoder->read_images_from(std::make_shared<train::ImageLoader>(
        records.images()->input(), decoder->tower().spec, at::get_num_threads()));
  return decoder;
}

/// The step of `train` (src/train/trainer.cpp): on CUDA, where the optimizer can, the device
/// decides about the update, and a step is queued before the numbers of the one before are read.
class BenchedSteps {
 public:
  BenchedSteps(model::Decoder& decoder, const config::TrainConfig& config)
      : decoder_(decoder),
        device_(decoder.options().device),
        optimizer_(train::make_optimizer(decoder.parameters(), config)),
        passes_(model::Stage(decoder), {.use = train::graph_use(config.cuda_graphs)}),
        numbers_{train::StepNumbers(device_), train::StepNumbers(device_)} {
    if (reads_later()) gate_ = kernels::open_gate(device_);
  }

  void queue(const data::Batch& batch) {
    train::StepNumbers& numbers = numbers_of(num_queued_);
    numbers.begin();
    decoder_.parameters().zero_grad();
    const auto label_tokens = static_cast<double>(batch.label_tokens);
    const at::Tensor loss =
        passes_.forward_backward(batch, {42, static_cast<uint32_t>(num_queued_), /*training=*/true},
                                 /*is_pinned=*/true, {.grad_scale = 1 / label_tokens});
    numbers.gather(comm_, kernels::sum_of_squares(decoder_.parameters().grad()).sqrt_(),
                   {.losses = {loss}}, {.num_terms = label_tokens});
    if (reads_later()) {
      kernels::decide_update_(gate_, numbers.on_device(),
                              {.num_losses = 1, .num_terms = label_tokens, .max_norm = kMaxNorm});
      optimizer_->step(kLearningRate, gate_);
    }
    numbers.send();
    ++num_queued_;
  }

  /// Reads the oldest step that was not read; its loss.
  double finish() {
    const train::RankNumbers numbers = numbers_of(num_finished_++).wait().front();
    if (!reads_later())
      optimizer_->step(kLearningRate, train::clip_factor(numbers.grad_norm, kMaxNorm));
    return numbers.losses.front() / numbers.host.num_terms;
  }

  bool reads_later() const { return device_.is_cuda() && optimizer_->reads_gate(); }
  size_t num_graphs() const { return passes_.size(); }

 private:
  static constexpr double kLearningRate = 1e-4, kMaxNorm = 1;
  train::StepNumbers& numbers_of(int64_t step) { return numbers_[static_cast<size_t>(step % 2)]; }

  model::Decoder& decoder_;
  at::Device device_;
  std::unique_ptr<train::Optimizer> optimizer_;
  model::PassGraphs passes_;
  parallel::Communicator comm_;  // of one process
  at::Tensor gate_;
  std::array<train::StepNumbers, 2> numbers_;
  int64_t num_queued_ = 0, num_finished_ = 0;
};

struct Times {
  std::vector<double> step_seconds;  ///< from the end of one step to that of the next
  double first_step_seconds = 0;     ///< from the start of the process
  double loss = 0;                   ///< of the last step
};

data::Batch batch_of(const SyntheticRecords& records, int64_t count, int64_t step) {
  std::vector<data::Bin> bins;
  for (int64_t i = 0; i < count; ++i) bins.push_back({i});
  return data::make_batch(data::ExampleStore::in_memory(records.of_step(count, step)), bins, 0,
                          count);
}

struct BenchedWork {
  SyntheticRecords records;
  int64_t batch_size = 0;

  /// Another batch for each step.
  data::Batch batch(int64_t step) const { return batch_of(records, batch_size, step); }
  int64_t tokens() const { return records.seq_len() * batch_size; }
  int64_t images() const {
    return records.images() ? records.images()->planned().of_sequence * batch_size : 0;
  }
};

/// Images that one thread reads, decodes and processes in a second, from their files to the tower's values.
double preprocessed_per_second(const SyntheticRecords& records, const layers::Tower& tower) {
  constexpr int kRounds = 3;
  train::ImageLoader loader(records.images()->input(), tower.spec, /*num_threads=*/1);
  const data::Batch batch = batch_of(records, /*count=*/1, /*step=*/0);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    loader.load(batch);
    const std::chrono::duration<double> taken = Clock::now() - begin;
    best = std::max(best, static_cast<double>(batch.images.size()) / taken.count());
  }
  return best;
}

/// Says how far the steps are where they take long, so that nobody takes the program for stuck.
class StepNotes {
 public:
  /// @param count of the steps, without the warm-up
  explicit StepNotes(int64_t count) : count_(count) {}
  void finished(int64_t step) {
    constexpr std::chrono::seconds kQuiet(10);
    const auto now = Clock::now();
    if (now - last_ < kQuiet || step >= count_) return;
    last_ = now;
    log::info("{} of {} measured", step, counted(count_, "step"));
  }

 private:
  int64_t count_;
  Clock::time_point last_ = Clock::now();
};

Times time_steps(BenchedSteps& steps, const BenchedWork& work, int64_t count) {
  Times times;
  StepNotes notes(count);
  auto last_end = Clock::now();
  const auto finish = [&](int64_t step) {
    times.loss = steps.finish();
    const auto now = Clock::now();
    if (step == 0)
      times.first_step_seconds = seconds_since_process_start();
    else
      times.step_seconds.push_back(std::chrono::duration<double>(now - last_end).count());
    notes.finished(step);
    last_end = now;
  };
  // The first warms up. Steps that are read later end when the next has been queued, so one more is
  // queued: its own end would come too early after that of the step before.
  const int64_t last = steps.reads_later() ? count + 1 : count;
  for (int64_t step = 0; step <= last; ++step) {
    const data::Batch batch = work.batch(step);
    if (!steps.reads_later()) last_end = Clock::now();  // its tokens are made at no cost
    steps.queue(batch);
    if (!steps.reads_later()) finish(step);
    if (steps.reads_later() && step > 0) finish(step - 1);
  }
  if (steps.reads_later()) steps.finish();
  return times;
}

/// Two more steps, as they are in a run: the second is queued while the device has the first.
void profile_steps(BenchedSteps& steps, const BenchedWork& work, int64_t after, at::Device device,
                   const std::string& folder) {
  constexpr StepRange kProfiled = {.first = 1, .last = 2};
  train::StepProfiler profiler(kProfiled, folder, /*rank=*/0, device);
  for (int64_t step = kProfiled.first; step <= kProfiled.last; ++step) {
    const data::Batch batch = work.batch(after + step);
    profiler.begin(step);
    steps.queue(batch);
    if (!steps.reads_later() || step > kProfiled.first) steps.finish();
    if (steps.reads_later() && step == kProfiled.last) steps.finish();
    profiler.end(step);
  }
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// What was measured.
struct BenchResult {
  Times times;
  BenchedWork work;
  Compute compute;
  uint64_t peak_bytes = 0;
  size_t num_graphs = 0;
  std::optional<double> preprocessed;  ///< images a second in one thread

  double median() const { return median_of(times.step_seconds); }
  double best() const {
    return *std::min_element(times.step_seconds.begin(), times.step_seconds.end());
  }
  double tokens() const { return static_cast<double>(work.tokens()); }
  double images_per_second() const { return static_cast<double>(work.images()) / median(); }
  double records_per_hour() const { return 3600 * static_cast<double>(work.batch_size) / median(); }
};

nlohmann::ordered_json json_of_images(const BenchResult& result) {
  const SyntheticImages& images = result.work.records.images().value();
  return {{"images", images.planned().of_sequence},
          {"image_width", images.planned().width},
          {"image_height", images.planned().height},
          {"image_tokens", images.tokens_of_record()},
          {"image_features", images.features_of_record()},
          {"images_per_second", result.images_per_second()},
          {"records_per_hour", result.records_per_hour()},
          {"preprocessed_images_per_second", result.preprocessed.value()}};
}

nlohmann::ordered_json json_of_result(const BenchResult& result) {
  nlohmann::ordered_json json = {{"tokens_per_second", result.tokens() / result.median()},
                                 {"tokens_per_second_best", result.tokens() / result.best()},
                                 {"step_seconds", result.times.step_seconds},
                                 {"first_step_seconds", result.times.first_step_seconds},
                                 {"peak_memory_bytes", result.peak_bytes},
                                 {"dtype", dtype_name(result.compute.dtype)},
                                 {"world_size", 1},
                                 {"threads", at::get_num_threads()},
                                 {"cuda_graphs", result.num_graphs},
                                 {"loss", result.times.loss}};
  if (result.work.records.images()) json.update(json_of_images(result));
  return json;
}

std::string text_of_result(const BenchResult& result) {
  std::string text = fmt::format(
      "{:.0f} tokens/s (best {:.0f}), step {:.3f} s, first step after {:.1f} s, peak memory {}, {} "
      "on {}, {}\n",
      result.tokens() / result.median(), result.tokens() / result.best(), result.median(),
      result.times.first_step_seconds, format_bytes(result.peak_bytes),
      dtype_name(result.compute.dtype), device_name(result.compute.device),
      counted(at::get_num_threads(), "thread"));
  const auto& images = result.work.records.images();
  if (!images) return text;
  const app::PlannedImages& planned = images->planned();
  return text + fmt::format(
                    "{:.1f} images/s in the steps, {:.0f} records an hour; preprocessing alone: "
                    "{:.1f} images/s in one thread\n"
                    "{} of {} x {} pixels in each sequence: {} of its {} tokens\n",
                    result.images_per_second(), result.records_per_hour(), *result.preprocessed,
                    counted(planned.of_sequence, "image"), planned.width, planned.height,
                    images->tokens_of_record(), result.work.records.seq_len());
}

}  // namespace

int run_bench(const app::BenchRequest& request) {
  set_threads(request.compute.threads);
  const BenchConfig bench = bench_config(request);
  const Compute compute = choose_compute(request.compute.device, bench.dtype, 0);
  const BenchedModel model = open_model_to_bench(request);
  BenchResult result{.work = {.records = records_of(request, model, bench.run.data),
                              .batch_size = request.batch_size},
                     .compute = compute};
  const auto decoder = make_decoder(model, bench.run, compute, result.work.records);
  BenchedSteps steps(*decoder, bench.run.train);
  result.times = time_steps(steps, result.work, request.steps);
  result.peak_bytes = peak_memory_bytes(compute.device);
  result.num_graphs = steps.num_graphs();
  if (result.work.records.images())
    result.preprocessed = preprocessed_per_second(result.work.records, decoder->tower());
  if (request.profile)
    profile_steps(steps, result.work, request.steps, compute.device, *request.profile);
  std::printf("%s", request.json ? (json_of_result(result).dump() + "\n").c_str()
                                 : text_of_result(result).c_str());
  return 0;
}

}  // namespace sftrun::engine
