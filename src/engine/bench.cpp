#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "commands.h"
#include "device_memory.h"
#include "memory_advice.h"
#include "session.h"
#include "sftrun/config/optimizer_state.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/rng.h"
#include "sftrun/core/units.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/train/trainer.h"

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

BenchConfig bench_config(const nlohmann::json& request) {
  std::vector<std::string> overrides = {
      "tuning.lora.r=8", "tuning.lora.alpha=16",
      "tuning.lora.target_modules=[q_proj, k_proj, v_proj, o_proj]"};
  for (const auto& text : request.at("overrides")) overrides.push_back(text.get<std::string>());
  BenchConfig bench{config::config_from_overrides(overrides).config,
                    request.at("dtype").get<std::string>()};
  if (bench.dtype == "auto" && bench.run.model.dtype != config::DTypeChoice::kAuto) {
    bench.dtype = bench.run.model.dtype == config::DTypeChoice::kFp32 ? "fp32" : "bf16";
  }
  return bench;
}

std::unique_ptr<model::Decoder> make_decoder(const nlohmann::json& request,
                                             const config::RunConfig& run, const Compute& compute) {
  if (const auto arch_path = get<std::string>(request, "arch")) {
    const auto json = nlohmann::json::parse(read_text_file(*arch_path), nullptr, false);
    if (json.is_discarded())
      throw DataError("not valid JSON", *arch_path, "--arch names a model's config.json");
    return model::Decoder::random(spec::ArchSpec::from_hf_config(json, *arch_path),
                                  decoder_options(run, compute, nullptr));
  }
  const std::shared_ptr<const weights::Checkpoint> checkpoint =
      weights::Checkpoint::open(request.at("model").get<std::string>());
  return load_decoder(checkpoint, decoder_options(run, compute, checkpoint.get()));
}

}  // namespace

int run_bench(const nlohmann::json& request) {
  set_threads(request);
  const BenchConfig bench = bench_config(request);
  const Compute compute = choose_compute(request.at("device").get<std::string>(), bench.dtype, 0);
  const auto decoder = make_decoder(request, bench.run, compute);
  const auto seq_len = request.at("seq_len").get<int64_t>(),
             batch_size = request.at("batch_size").get<int64_t>();
  const auto steps = request.at("steps").get<int64_t>();
  train::AdamW optimizer(decoder->parameters(),
                         {.is_8bit = config::is_8bit(bench.run.train.optimizer),
                          .moments_on_host = config::is_paged(bench.run.train.optimizer) &&
                                             !decoder->options().device.is_cpu()});
  model::PassGraphs passes(*decoder, {.use = train::graph_use(bench.run.train.cuda_graphs)});
  std::vector<data::Bin> bins;
  for (int64_t i = 0; i < batch_size; ++i) bins.push_back({i});

  std::vector<double> step_seconds;
  double first_step_seconds = 0, loss = 0;
  for (int64_t step = 0; step <= steps; ++step) {  // the first warms up
    const auto examples = data::ExampleStore::in_memory(synthetic_examples(
        batch_size, seq_len, decoder->arch().vocab_size, static_cast<uint64_t>(step)));
    const auto start = Clock::now();
    const data::Batch batch = data::make_batch(examples, bins, 0, batch_size);
    const model::Randomness randomness{42, static_cast<uint32_t>(step), true};
    decoder->parameters().zero_grad();
    const at::Tensor loss_sum =
        passes.forward_backward(batch, randomness, /*is_pinned=*/true,
                                1.0 / static_cast<double>(batch.label_tokens), [](int64_t) {});
    const double norm = train::grad_norm(decoder->parameters()).item<double>();
    optimizer.step(1e-4, train::clip_factor(norm, 1.0));
    loss = loss_sum.item<double>() / static_cast<double>(batch.label_tokens);
    if (step == 0)
      first_step_seconds = seconds_since_process_start();
    else
      step_seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::vector<double> sorted = step_seconds;
  std::sort(sorted.begin(), sorted.end());
  const double tokens = static_cast<double>(seq_len * batch_size);
  const double median = sorted.size() % 2
                            ? sorted[sorted.size() / 2]
                            : (sorted[sorted.size() / 2 - 1] + sorted[sorted.size() / 2]) / 2;
  const uint64_t peak = peak_memory_bytes(compute.device);
  if (request.value("json", false)) {
    const nlohmann::ordered_json result = {{"tokens_per_second", tokens / median},
                                           {"tokens_per_second_best", tokens / sorted.front()},
                                           {"step_seconds", step_seconds},
                                           {"first_step_seconds", first_step_seconds},
                                           {"peak_memory_bytes", peak},
                                           {"dtype", dtype_name(compute.dtype)},
                                           {"world_size", 1},
                                           {"threads", at::get_num_threads()},
                                           {"cuda_graphs", passes.size()},
                                           {"loss", loss}};
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("%s\n",
                fmt::format("{:.0f} tokens/s (best {:.0f}), step {:.3f} s, first step after {:.1f} "
                            "s, peak memory {}, {} on {}, "
                            "{} threads",
                            tokens / median, tokens / sorted.front(), median, first_step_seconds,
                            format_bytes(peak), dtype_name(compute.dtype),
                            device_name(compute.device), at::get_num_threads())
                    .c_str());
  }
  return 0;
}

}  // namespace sftrun::engine
