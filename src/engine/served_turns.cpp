#include "served_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "from_all_ranks.h"
#include "sftrun/core/error.h"
#include "sftrun/core/for_each_together.h"
#include "sftrun/core/log.h"
#include "sftrun/core/rng.h"
#include "sftrun/core/strings.h"
#include "turn_seed.h"

namespace sftrun::engine {
namespace {

constexpr const char* kEngine = "train.rollouts.engine";

std::vector<int32_t> stops_of(const data::TextModel& text) {
  return {text.stop_ids.begin(), text.stop_ids.end()};
}

int64_t vocab_size_of(const data::TextModel& text) {
  return text.num_embeddings.value_or(text.tokenizer->vocab_size());
}

}  // namespace

ServedTurns::ServedTurns(const config::RunConfig& config, const data::TextModel& text,
                         const AnsweringModel::Inputs& model, const weights::AdapterConfig& adapter,
                         const std::filesystem::path& run_dir, HeldFailure& failure)
    : config_(config),
      text_(text),
      model_(model),
      failure_(failure),
      server_(
          {.rollouts = config.train.rollouts,
           .vocab_size = vocab_size_of(text),
           .stop_tokens = stops_of(text),
           .should_stop =
               [this, &rank = model.rank] { return has_failed_ || rank.stop_exit_code() != 0; }}),
      adapter_({.server = server_,
                .decoder = model.decoder,
                .strategy = model.strategy,
                .rank = model.rank,
                .run_dir = run_dir,
                .config = adapter}) {}

void ServedTurns::require_base(const std::vector<ListedModel>& models, int64_t length) const {
  const std::string& asked = config_.train.rollouts.engine_model;
  const std::string& name = asked.empty() ? config_.model.name : asked;
  const ListedModel* base = find_listed(models, name);
  std::vector<std::string> ids;
  for (const ListedModel& model : models) ids.push_back(excerpt(model.id));
  if (base == nullptr)
    throw ConfigError(fmt::format("the server has no model {}; it has {}", excerpt(name),
                                  ids.empty() ? "none" : join(ids, ", ")),
                      fmt::format("{} ({})", kEngine, server_.url()),
                      "serve the base model of the run, or give the server's name for it: "
                      "train.rollouts.engine_model");
  if (base->max_length && *base->max_length < length)
    throw ConfigError(
        fmt::format("the server's model {} has a context of {} tokens, and the longest prompt with "
                    "its answer may have {}",
                    excerpt(base->id), *base->max_length, length),
        fmt::format("{} ({})", kEngine, server_.url()),
        "start the server with a larger --max-model-len, or lower train.rollouts.max_new_tokens");
  const std::vector<int32_t> prompt = data::encode_open_text(*text_.tokenizer, "Hello").ids;
  server_.complete({.model = base->id, .prompt = prompt, .max_tokens = 1});
}

void ServedTurns::rehearse(int64_t length) {
  if (!model_.rank().is_main()) return;
  const std::vector<ListedModel> models = server_.models();
  require_base(models, length);
  adapter_.unload_left(models);
  log::info("answers are written by the server {}", server_.url());
}

int ServedTurns::write(const Turns& turns) {
  Rank& rank = model_.rank();
  const bool loads = adapter_.write(turns.step);
  int code = failure_.guard([&] {
    if (loads) adapter_.load();
  });
  code = rank.of_main(code);
  if (code != 0) return code;
  rank.activity().set_work(Work::kGenerating);
  code = failure_.guard([&] { ask_for_all(turns); });
  return from_all_ranks(rank.comm(), code).exit_code;
}

/// Of the answers that are dealt to this rank's copy of the model.
void ServedTurns::ask_for_all(const Turns& turns) {
  if (!model_.ranks_of_copy().leads()) return;
  const Share share = model_.share();
  std::vector<size_t> own;
  for (const size_t answer : turns.answers)
    if (share.has(answer)) own.push_back(answer);
  std::vector<data::PromptTokens> prompts;
  std::vector<int64_t> max_tokens;
  for (const size_t answer : own) {
    prompts.push_back(turns.prompt(answer));
    max_tokens.push_back(turns.max_new_tokens(answer));
    if (!prompts.back().media.empty())
      throw DataError("the prompt has images or features, and servers are sent token ids alone",
                      turns.place(answer), "use train.rollouts.engine: self");
  }
  const auto at_a_time = static_cast<size_t>(config_.train.rollouts.batch_size);
  std::vector<ServedCompletion> completions(own.size());
  for_each_together(own.size(), at_a_time, has_failed_, [&](size_t i) {
    completions[i] = server_.complete({.model = adapter_.name(),
                                       .prompt = prompts[i].ids,
                                       .max_tokens = max_tokens[i],
                                       .seed = seed_of_answer(turns, own[i])});
  });
  for (size_t i = 0; i < own.size(); ++i)
    turns.on_answer(own[i], answer_of(std::move(completions[i])));
}

/// A function of the run's seed, the step, the turn and the answer. JSON numbers are exact below 2^53.
uint64_t ServedTurns::seed_of_answer(const Turns& turns, size_t answer) const {
  constexpr unsigned kHighBits = 21;
  RandomStream of_answer(seed_of_turns(config_.train.seed, turns.number), answer);
  const uint64_t high = of_answer.next_u32() >> (32U - kHighBits);
  return high << 32U | of_answer.next_u32();
}

/// The server says nothing of the model's own probabilities and entropy.
Answer ServedTurns::answer_of(ServedCompletion&& completion) const {
  constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
  std::span<const int32_t> text = completion.token_ids;
  if (completion.stopped) text = text.first(text.size() - 1);
  Answer answer{.text = text_.tokenizer->decode({text.begin(), text.end()},
                                                /*skip_special_tokens=*/true),
                .num_tokens = text.size(),
                .stopped = completion.stopped,
                .token_ids = std::move(completion.token_ids)};
  for (const float logprob : completion.logprobs)
    answer.logprobs.push_back({.model = kUnknown, .drawn = logprob, .entropy = kUnknown});
  return answer;
}

}  // namespace sftrun::engine
