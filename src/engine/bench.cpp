#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "commands.h"
#include "device_memory.h"
#include "memory_advice.h"
#include "session.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/rng.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/foreign/load.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/train/step_numbers.h"
#include "sftrun/train/step_profiler.h"

/// Training throughput on synthetic tokens: forward, backward, clipping and optimizer, every
/// position labelled.
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

std::vector<data::Example> synthetic_examples(int64_t count, int64_t seq_len, int64_t vocab,
                                              uint64_t step) {
  std::vector<data::Example> examples(static_cast<size_t>(count));
  RandomStream random(1234, step);
  for (data::Example& example : examples) {
    for (int64_t i = 0; i < seq_len; ++i) {
      example.tokens.push_back(
          static_cast<int32_t>(random.next_below(static_cast<uint64_t>(vocab))));
    }
    example.labels.assign(example.tokens.begin() + 1, example.tokens.end());
    example.labels.push_back(data::kIgnoreIndex);
    example.label_tokens = seq_len - 1;
  }
  return examples;
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
  if (bench.run.train.objective_info().needs_sums()) {
    const auto measured = config::objective_names(&config::ObjectiveInfo::is_cross_entropy);
    throw ConfigError(fmt::format("bench measures train.objective {} only", join(measured, ", ")),
                      "train.objective", "remove it");
  }
  if (bench.dtype == "auto" && bench.run.model.dtype != config::DTypeChoice::kAuto) {
    bench.dtype = bench.run.model.dtype == config::DTypeChoice::kFp32 ? "fp32" : "bf16";
  }
  return bench;
}

std::unique_ptr<model::Decoder> make_decoder(const app::BenchRequest& request,
                                             const config::RunConfig& run, const Compute& compute) {
  if (const auto& arch_path = request.arch) {
    const auto json = parse_python_json(read_utf8_file(*arch_path));
    if (json.is_discarded())
      throw DataError("not valid JSON", *arch_path, "--arch names a model's config.json");
    return model::Decoder::random(spec::ArchSpec::from_hf_config(json, *arch_path),
                                  decoder_options(run, compute, nullptr));
  }
  const std::shared_ptr<const weights::Checkpoint> checkpoint =
      weights::Checkpoint::open(request.model.value());
  return load_decoder(checkpoint, decoder_options(run, compute, checkpoint.get()));
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

struct BenchedWork {
  int64_t seq_len = 0, batch_size = 0, vocab_size = 0;

  /// Another batch for each step.
  data::Batch batch(int64_t step) const {
    std::vector<data::Bin> bins;
    for (int64_t i = 0; i < batch_size; ++i) bins.push_back({i});
    const auto examples = data::ExampleStore::in_memory(
        synthetic_examples(batch_size, seq_len, vocab_size, static_cast<uint64_t>(step)));
    return data::make_batch(examples, bins, 0, batch_size);
  }
};

Times time_steps(BenchedSteps& steps, const BenchedWork& work, int64_t count) {
  Times times;
  auto last_end = Clock::now();
  const auto finish = [&](int64_t step) {
    times.loss = steps.finish();
    const auto now = Clock::now();
    if (step == 0)
      times.first_step_seconds = seconds_since_process_start();
    else
      times.step_seconds.push_back(std::chrono::duration<double>(now - last_end).count());
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

}  // namespace

int run_bench(const app::BenchRequest& request) {
  set_threads(request.compute.threads);
  const BenchConfig bench = bench_config(request);
  const Compute compute = choose_compute(request.compute.device, bench.dtype, 0);
  const auto decoder = make_decoder(request, bench.run, compute);
  const BenchedWork work{.seq_len = request.seq_len,
                         .batch_size = request.batch_size,
                         .vocab_size = decoder->arch().vocab_size};
  const int64_t num_steps = request.steps;
  BenchedSteps steps(*decoder, bench.run.train);
  const Times times = time_steps(steps, work, num_steps);
  const std::vector<double>& step_seconds = times.step_seconds;
  const auto tokens = static_cast<double>(work.seq_len * work.batch_size);
  const double median = median_of(step_seconds);
  const double best = *std::min_element(step_seconds.begin(), step_seconds.end());
  const uint64_t peak = peak_memory_bytes(compute.device);
  if (request.profile) profile_steps(steps, work, num_steps, compute.device, *request.profile);
  if (request.json) {
    const nlohmann::ordered_json result = {{"tokens_per_second", tokens / median},
                                           {"tokens_per_second_best", tokens / best},
                                           {"step_seconds", step_seconds},
                                           {"first_step_seconds", times.first_step_seconds},
                                           {"peak_memory_bytes", peak},
                                           {"dtype", dtype_name(compute.dtype)},
                                           {"world_size", 1},
                                           {"threads", at::get_num_threads()},
                                           {"cuda_graphs", steps.num_graphs()},
                                           {"loss", times.loss}};
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("%s\n",
                fmt::format("{:.0f} tokens/s (best {:.0f}), step {:.3f} s, first step after {:.1f} "
                            "s, peak memory {}, {} on {}, "
                            "{}",
                            tokens / median, tokens / best, median, times.first_step_seconds,
                            format_bytes(peak), dtype_name(compute.dtype),
                            device_name(compute.device), counted(at::get_num_threads(), "thread"))
                    .c_str());
  }
  return 0;
}

}  // namespace sftrun::engine
