#include "sftrun/train/run_data.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/advantages.h"
#include "sftrun/data/data_problems.h"

namespace sftrun::train {
namespace {

void hold_out_validation_data(RunData& data, const config::RunConfig& config) {
  auto [first, second] = data::split_dataset(*data.train, config.data.val_split,
                                             static_cast<uint64_t>(config.data.seed));
  const int64_t together = data::documents_together(config);
  log::info("data.val_split: {} to train on, {} held out to validate on",
            counted(first.examples().size() / together, together == 1 ? "example" : "pair"),
            second.examples().size() / together);
  data.train = std::move(first);
  data.val = std::move(second);
}

struct AnswerEnds {
  int64_t num_answers = 0, num_cut_short = 0;
};
AnswerEnds ends_of(const data::ExampleStore& examples) {
  AnswerEnds ends{.num_answers = examples.size()};
  for (int64_t i = 0; i < examples.size(); ++i)
    ends.num_cut_short += examples.stored(i).is_cut_short != 0 ? 1 : 0;
  return ends;
}

/// Whether `train.sampling_correction` removes all of an answer from the loss, as far as its record says.
bool is_masked(const data::LabelValues& values, const config::TrainConfig& config) {
  const std::vector<float>& old = values.of(data::LabelColumn::kOldLogp);
  const std::vector<float>& sampled = values.of(data::LabelColumn::kSampledLogp);
  if (old.empty() || sampled.empty()) return false;
  const double most = std::log(config.sampling_correction_max);
  double sum = 0, least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < old.size(); ++i) {
    const double difference = static_cast<double>(old[i]) - static_cast<double>(sampled[i]);
    const double known = std::isnan(difference) ? 0 : difference;
    sum += known;
    least = std::min(least, known);
  }
  return config.sampling_correction == config::SamplingCorrection::kTokenMask ? least > most
                                                                              : sum > most;
}

/// @throws DataError if the correction leaves nothing to train on
void require_unmasked_answers(const data::ExampleStore& examples, const config::TrainConfig& config,
                              const char* key, bool is_validation) {
  using enum config::SamplingCorrection;
  const bool masks =
      config.sampling_correction == kTokenMask || config.sampling_correction == kSequenceMask;
  int64_t num_masked = 0;
  for (int64_t i = 0; masks && i < examples.size(); ++i) {
    if (!examples.stored(i).has(data::LabelColumn::kSampledLogp)) continue;
    num_masked += is_masked(examples.values_of(i), config) ? 1 : 0;
  }
  if (num_masked == 0) return;
  if (num_masked == examples.size() && !is_validation)
    throw DataError(
        "train.sampling_correction leaves out every answer: \"logprobs\" and "
        "\"sampling_logprobs\" differ too much",
        key,
        "see that both are of the same tokens; set sampling_correction to sequence_truncate, or "
        "raise sampling_correction_max");
  if (2 * num_masked > examples.size())
    log::warn(
        "{}: train.sampling_correction leaves out {} of {}, of which \"logprobs\" and "
        "\"sampling_logprobs\" differ too much; sequence_truncate keeps them",
        key, num_masked, counted(examples.size(), "answer"));
}

/// Sampled answers get their advantages from the rewards of their groups.
/// @throws DataError if no reward of the training data says anything
void attach_advantages(data::Dataset& data, const config::TrainConfig& config, bool is_validation) {
  const char* key = is_validation ? "data.val" : "data.train";
  if (config.example_form() != config::ExampleForm::kSampled) return;
  data::Advantages advantages = data::advantages_of(data.examples(), config.scale_rewards);
  const int64_t silent = advantages.num_alone + advantages.num_equal;
  if (advantages.num_groups > 0)
    log::info("{}: sampled answers in {}; {} of them have answers with different rewards", key,
              counted(advantages.num_groups, "group"), advantages.num_groups - silent);
  const AnswerEnds ends = ends_of(data.examples());
  if (config.mask_truncated_completions && ends.num_cut_short == 0)
    log::warn(
        "{}: train.mask_truncated_completions has no effect: no answer has \"finish_reason\": "
        "\"length\"",
        key);
  if (config.mask_truncated_completions && ends.num_cut_short == ends.num_answers && !is_validation)
    throw DataError(
        "every answer was cut short (\"finish_reason\": \"length\"), and with "
        "train.mask_truncated_completions none of them is trained on",
        key, "sample longer answers (--max-new-tokens), or set it to false");
  require_unmasked_answers(data.examples(), config, key, is_validation);
  if (config.scale_rewards != config::ScaleRewards::kGroup && advantages.num_groups == 0)
    log::warn("{}: train.scale_rewards has no effect: the records have advantages, and no rewards",
              key);
  const bool teaches = std::any_of(advantages.of_examples.begin(), advantages.of_examples.end(),
                                   [](double advantage) { return advantage != 0; });
  if (!teaches && !is_validation)
    throw DataError(
        advantages.num_groups == 0 ? "all advantages are 0"
        : advantages.num_alone == advantages.num_groups
            ? "no two answers are of one group, so that no answer is better than another"
            : "the answers of each group have the same reward, so that none is better than another",
        key,
        "sample several answers to each prompt, and rewards that tell them apart; \"group\" of a "
        "record says which belong together, else the same prompt");
  if (2 * silent > advantages.num_groups)
    log::warn(
        "{}: {} of {} teach nothing: {} of one answer, {} whose rewards are equal; sample more "
        "answers "
        "to each prompt, or leave out prompts that are too easy or too hard",
        key, silent, counted(advantages.num_groups, "group"), advantages.num_alone,
        advantages.num_equal);
  data.set_advantages(std::move(advantages.of_examples));
}

/// A number among the settings of a checkpoint's identity.
std::optional<int64_t> saved_setting(const nlohmann::ordered_json& identity, const char* key) {
  if (!identity.is_object()) return std::nullopt;
  const auto settings = identity.find("config");
  if (settings == identity.end() || !settings->is_object()) return std::nullopt;
  const auto value = settings->find(key);
  if (value == settings->end() || !value->is_number_integer()) return std::nullopt;  // auto
  return value->get<int64_t>();
}

/// "1 or 2 processes" over which the batch can be divided; empty: there is no such number.
std::string dividing_numbers(int64_t batch, int64_t batch_size, const char* unit) {
  std::vector<std::string> numbers;
  for (int64_t number = 1; number * batch_size <= batch; ++number)
    if (batch % (number * batch_size) == 0) numbers.push_back(std::to_string(number));
  if (numbers.empty()) return {};
  const bool is_one = numbers.size() == 1 && numbers[0] == "1";
  return fmt::format("{} {}", join(numbers, " or "), plural(unit, is_one ? 1 : 2));
}

/// A resumed run that chooses its sizes has the batch of its checkpoint, over any number of
/// processes that divides it.
void require_saved_batch(const config::RunConfig& config, const BatchRequest& request,
                         int64_t saved, int dp_size) {
  if (*config.train.global_batch_size.value == saved) return;
  const char* unit = config.parallel.axes.part_word();
  const int64_t batch_size = request.batch_size.value_or(1);
  const std::string fitting = dividing_numbers(saved, batch_size, unit);
  throw ConfigError(
      fmt::format("the run began with batches of {} (train.global_batch_size), which cannot be "
                  "divided over {}{}",
                  saved, counted(dp_size, unit),
                  batch_size > 1 ? fmt::format(" with train.batch_size {}", batch_size) : ""),
      "train.global_batch_size",
      (fitting.empty() ? "give train.batch_size its earlier value" : "resume with " + fitting) +
          "; or start a new run: choose another output.dir, or --overwrite moves this run aside");
}

}  // namespace

RunData load_run_data(const config::RunConfig& config, const data::TextModel& text, int num_threads,
                      const nlohmann::ordered_json& position) {
  RunData loaded;
  const auto load = [&](const std::vector<config::DataSource>& sources, bool is_validation) {
    return data::load_dataset(config, sources, is_validation, text, num_threads);
  };
  data::ProblemCollector problems;
  if (!config.data.val.empty()) {
    problems.run([&] { loaded.val = load(config.data.val, /*is_validation=*/true); });
    if (!loaded.val) log::info("data.val has errors; they are reported when data.train is read");
  }
  if (config.data.streaming) {
    std::unique_ptr<StreamedBatches> streamed;
    problems.run(
        [&] { streamed = std::make_unique<StreamedBatches>(config, text, num_threads, position); });
    problems.throw_if_any();
    loaded.fingerprint = streamed->fingerprint();
    loaded.parts = streamed->file_hashes();
    loaded.batches = std::move(streamed);
    return loaded;
  }
  problems.run([&] { loaded.train = load(config.data.train, /*is_validation=*/false); });
  problems.throw_if_any();
  if (config.data.val_split > 0) hold_out_validation_data(loaded, config);
  attach_advantages(*loaded.train, config.train, /*is_validation=*/false);
  if (loaded.val) attach_advantages(*loaded.val, config.train, /*is_validation=*/true);
  loaded.fingerprint = loaded.train->fingerprint();
  for (const data::DatasetPart& part : loaded.train->parts())
    loaded.parts.emplace_back(part.name, part.fingerprint);
  for (const data::DatasetPart& part : loaded.train->parts())
    if (!part.media_fingerprint.empty())
      loaded.parts.emplace_back("the images or features of " + part.name, part.media_fingerprint);
  return loaded;
}

void make_batches(RunData& data, const config::RunConfig& config, data::BinCost cost) {
  if (!data.batches) data.batches = std::make_unique<PlannedBatches>(config, *data.train);
  data.batches->deal_with({.cost = std::move(cost),
                           .size = config.train.batch_size.value.value_or(1),
                           .parts = config.parallel.axes.data_parts()});
}

std::string fit_batches_to_data(config::RunConfig& config, const BatchRequest& request,
                                const data::EpochSize& epoch, int dp_size,
                                const nlohmann::ordered_json& saved) {
  config::TrainConfig& train = config.train;
  // A run whose number of steps is given has as many as its user wants.
  const bool is_counted = train.max_steps.has_value();
  const config::ObjectiveInfo& objective = train.objective_info();
  if (request.steps_are_auto) {
    const auto earlier = saved_setting(saved, "train.global_batch_size");
    const int64_t target = earlier.value_or(data::target_batch(epoch, objective, is_counted));
    config::set_target_batch(
        train, target, {request.batch_size}, dp_size,
        config::max_auto_micro_batch(config.parallel.axes, request.max_micro_batch, target),
        request.eval_follows);
    if (earlier) require_saved_batch(config, request, *earlier, dp_size);
  }
  config::AutoInt& tokens = config.data.bin_tokens;
  if (!config.data.packing || tokens.value) return {};
  const int64_t most = config.model.max_seq_len;
  const int64_t fitting = data::bin_tokens(epoch, objective, *train.global_batch_size.value, most);
  tokens.value = saved_setting(saved, "data.bin_tokens").value_or(is_counted ? most : fitting);
  if (*tokens.value >= most) return {};
  return fmt::format(
      "a small data set ({} tokens per epoch): packed sequences have {} tokens instead of {}, so "
      "that {} (data.bin_tokens)",
      format_count(static_cast<uint64_t>(epoch.tokens)), *tokens.value, most,
      objective.embeds() ? "a step has no more examples than are compared with each other"
                         : "an epoch has more optimizer steps");
}

}  // namespace sftrun::train
