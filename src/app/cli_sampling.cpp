#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/tokenizer/generated_text.h"

/// Flags of the commands that generate text.
namespace sftrun::app {

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  command
      .add_option("--max-new-tokens", flags.max_new_tokens, "Maximum number of tokens to generate")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option(
          "--temperature", flags.temperature,
          "0: greedy, always the most likely token; above 0: sample, 1 as the model predicts")
      ->check(in_range(0, 100))
      ->capture_default_str();
  command
      .add_option(
          "--top-p", flags.top_p,
          "Sample from the most likely tokens whose probabilities add up to this value [1: all]")
      ->check(in_range(0, 1));
  command.add_option("--top-k", flags.top_k, "Sample from the N most likely tokens [all]")
      ->check(at_least(1));
  command
      .add_option("--min-p", flags.min_p,
                  "Sample from tokens with at least this share of the most likely token's "
                  "probability [0: all]")
      ->check(in_range(0, 1));
  command.add_option("--seed", flags.seed, "Seed of the sampling [0]")
      ->check(at_least(0, std::numeric_limits<int64_t>::max()));
  command
      .add_option("--repetition-penalty", flags.repetition_penalty,
                  "Above 1: make tokens of the prompt and tokens already generated less likely [1]")
      ->check(in_range(0.01, 100));
  command
      .add_option("--stop", flags.stop,
                  "End the answer before this text; may be given several times")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  constexpr const char* kHidden = "";
  command.add_option("--num-beams", flags.num_beams, "Only 1: see check_sampling_flags")
      ->group(kHidden);
}

void check_sampling_flags(const SamplingFlags& flags) {
  if (flags.num_beams != "1") {
    throw ConfigError(
        fmt::format("--num-beams {}: beam search is not supported", excerpt(flags.num_beams)),
        "--num-beams on the command line",
        "leave it out: the most likely token is taken each time; or sample with "
        "--temperature");
  }
  if (std::find(flags.stop.begin(), flags.stop.end(), "") != flags.stop.end())
    throw ConfigError("--stop is empty", "--stop on the command line", "give a text to stop at");
  for (const std::string& stop : flags.stop) {
    if (stop.size() <= tokenizer::kMaxStopBytes) continue;
    throw ConfigError(fmt::format("--stop has {} bytes", stop.size()), "--stop on the command line",
                      fmt::format("give a text of at most {} bytes", tokenizer::kMaxStopBytes));
  }
}

void add_batch_size_flag(CLI::App& command, std::optional<int64_t>& batch_size) {
  command.add_option("--batch-size", batch_size, "Records generated at the same time [8]")
      ->check(at_least(1, kMaxRows));
}

}  // namespace sftrun::app
