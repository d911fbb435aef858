#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/foreign/load.h"

namespace sftrun::app {
namespace {

struct BenchOptions {
  std::string arch, model, dtype = "auto", device = "auto", profile;
  int64_t seq_len = 512, batch_size = 4, steps = 5;
  std::optional<int64_t> threads;
  bool json = false;
  std::vector<std::string> overrides;
};

void require_arch(const std::string& path) {
  require_exists("--arch", path);
  if (!is_folder(path)) return;
  throw DataError(fmt::format("{} is a directory", path), "--arch on the command line",
                  leads_to_file(std::filesystem::path(path) / "config.json")
                      ? fmt::format("name its config.json: --arch {}/config.json; or, to use its "
                                    "weights: --model {}",
                                    path, path)
                      : "name a model's config.json");
}

nlohmann::ordered_json request(const BenchOptions& options, const CLI::App& command) {
  require_at_most_one(command, {"--arch", "--model"});
  require(!options.arch.empty() || !options.model.empty(), command, "--arch or --model");
  if (!options.arch.empty()) require_arch(options.arch);
  // Reports mistakes before the engine is loaded.
  const config::LoadedConfig loaded = foreign::config_from_overrides(options.overrides);
  return {{"arch", or_null(options.arch)},
          {"model", options.model.empty()
                        ? nlohmann::ordered_json(nullptr)
                        : nlohmann::ordered_json(checked_model(command, options.model, ""))},
          {"seq_len", options.seq_len},
          {"batch_size", options.batch_size},
          {"steps", options.steps},
          {"dtype", options.dtype},
          {"device", options.device},
          {"threads", or_null(options.threads)},
          {"json", options.json},
          {"profile", or_null(options.profile)},
          {"overrides", options.overrides},
          {"places", loaded.places}};
}

}  // namespace

Command add_bench(CLI::App& sftrun) {
  constexpr int64_t kMostTokens = 10'000'000, kMostExamples = 100'000;
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = add_command(
      sftrun, "bench",
      "Measure training throughput on synthetic tokens (LoRA r 8 on q, k, v, o unless overridden)",
      "sftrun bench --model models/base --seq-len 1024 --dtype bf16 tuning.lora.r=16 --json");
  command->add_option("--arch", options->arch, "A config.json; the weights are random")
      ->type_name("FILE");
  command->add_option("-m,--model", options->model,
                      "Directory in Hugging Face layout, .gguf file, or a name on the hub");
  add_overrides(*command, options->overrides);
  command->add_option("--seq-len", options->seq_len, "Tokens per example")
      ->check(at_least(1, kMostTokens))
      ->capture_default_str();
  command->add_option("--batch-size", options->batch_size, "Examples per step")
      ->check(at_least(1, kMostExamples))
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Steps to measure, after one warm-up step")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Compute dtype")
      ->transform(compute_dtype())
      ->capture_default_str();
  command->add_option("--device", options->device, "Device to compute on")
      ->check(device_name())
      ->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads [all that the process may use]")
      ->check(thread_count());
  command->add_flag("--json", options->json, "Print one JSON object");
  command
      ->add_option("--profile", options->profile,
                   "Profile two more steps after those measured: a trace for Perfetto and a page "
                   "that says where the time goes, in this folder")
      ->type_name("DIR");
  return {command,
          [options, command] { return run_in_engine("bench", request(*options, *command)); }};
}

}  // namespace sftrun::app
