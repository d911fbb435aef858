#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli.h"
#include "planned_images.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/foreign/load.h"

namespace sftrun::app {
namespace {

struct BenchOptions {
  std::string arch, model, profile;
  ImageFlags images;
  BenchRequest request;  ///< what the flags give as it is
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

void require_place_for_folder(const std::string& flag, const std::filesystem::path& path) {
  if (!leads_to_file(path) || is_folder(path)) return;
  throw ConfigError(fmt::format("{} is not a directory", path.string()),
                    fmt::format("{} on the command line", flag), "name a new directory");
}

BenchRequest request_of(const BenchOptions& options, const CLI::App& command) {
  require_at_most_one(command, {"--arch", "--model"});
  require(!options.arch.empty() || !options.model.empty(), command, "--arch or --model");
  if (!options.arch.empty()) require_arch(options.arch);
  require_images_of_size(command);
  if (!options.profile.empty()) require_place_for_folder("--profile", options.profile);
  // Reports mistakes before the engine is loaded.
  BenchRequest request = options.request;
  request.places = foreign::config_from_overrides(request.overrides).places;
  request.arch = if_given(options.arch);
  if (!options.model.empty()) request.model = checked_model(command, options.model, "");
  request.images = planned_images(options.images);
  request.profile = if_given(options.profile);
  return request;
}

}  // namespace

Command add_bench(CLI::App& sftrun) {
  const std::vector<std::string> image_caps = {"data.max_image_pixels", "data.image_longest_edge"};
  constexpr int64_t kMaxTokens = 10'000'000, kMaxExamples = 100'000;
  auto options = std::make_shared<BenchOptions>();
  BenchRequest& request = options->request;
  CLI::App* command = add_command(
      sftrun, "bench",
      "Measure training throughput on synthetic tokens (LoRA r 8 on q, k, v, o unless overridden)",
      "sftrun bench --model models/base --seq-len 1024 --dtype bf16 tuning.lora.r=16 --json");
  command
      ->add_option("--arch", options->arch,
                   "Architecture to measure: a config.json; the weights are random")
      ->type_name("FILE");
  command->add_option("-m,--model", options->model,
                      "Directory in Hugging Face layout, .gguf file, or a name on the hub");
  add_overrides(*command, request.overrides);
  command->add_option("--seq-len", request.seq_len, "Tokens per example")
      ->check(at_least(1, kMaxTokens))
      ->capture_default_str();
  command->add_option("--batch-size", request.batch_size, "Examples per step")
      ->check(at_least(1, kMaxExamples))
      ->capture_default_str();
  command->add_option("--steps", request.steps, "Steps to measure, after one warm-up step")
      ->check(at_least(1))
      ->capture_default_str();
  add_image_flags(*command, options->images, "Train on");
  command->add_option("--dtype", request.compute.dtype, "Compute dtype")
      ->transform(compute_dtype())
      ->capture_default_str();
  command->add_option("--device", request.compute.device, "Device to compute on")
      ->check(device_name())
      ->capture_default_str();
  command
      ->add_option("--threads", request.compute.threads,
                   "CPU threads [all that the process may use]")
      ->check(thread_count());
  command->add_flag("--json", request.json, "Print one JSON object");
  command
      ->add_option("--profile", options->profile,
                   "Also profile two steps after the measurement: writes a trace for Perfetto and "
                   "a table of the time per operation into this folder")
      ->type_name("DIR");
  return {command,
          [options, command] { return run_in_engine(request_of(*options, *command)); },
          /*other_words=*/{"benchmark"},
          /*idle_rules=*/
          {{{"data.", "output.", "callbacks."},
            idle::always(" in `sftrun bench`, which trains on synthetic tokens and writes nothing"),
            image_caps},
           {image_caps, idle::without("--images", " in `sftrun bench`")},
           {{"train.batch_size", "train.global_batch_size", "train.grad_accum"},
            idle::always(" in `sftrun bench`; use --batch-size")},
           {{"train.epochs", "train.max_steps"}, idle::always(" in `sftrun bench`; use --steps")},
           {{"model.max_seq_len"}, idle::always(" in `sftrun bench`; use --seq-len")},
           {{"model.name"}, idle::always(" in `sftrun bench`; use --model")}}};
}

}  // namespace sftrun::app
