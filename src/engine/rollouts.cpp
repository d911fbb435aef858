#include "rollouts.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "answer_record.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/rng.h"
#include "sftrun/core/statistics.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/prompt.h"

namespace sftrun::engine {
namespace {

using Json = nlohmann::ordered_json;

/// Answers that programs and servers get together, as `sftrun reward` has it.
constexpr size_t kJudgedTogether = 64;

/// The number of evaluations among those of steps.
constexpr uint64_t kOfEvaluations = std::numeric_limits<uint64_t>::max();

/// Seeds of steps are independent.
uint64_t seed_of(int64_t seed, uint64_t number) {
  RandomStream stream(static_cast<uint64_t>(seed), number);
  const uint64_t high = stream.next_u32();
  return high << 32U | stream.next_u32();
}

data::PromptTokens prompt_of(const data::ExampleStore& examples, int64_t index) {
  const data::ExampleView example = examples[index];
  data::PromptTokens prompt;
  for (int64_t i = 0; i < example.size(); ++i) prompt.ids.push_back(example.token(i));
  if (example.stored->num_media > 0) prompt.media = examples.media_of(index);
  return prompt;
}

int64_t longest_prompt(const data::Dataset& prompts) {
  int64_t longest = 0;
  for (int64_t i = 0; i < prompts.examples().size(); ++i)
    longest = std::max<int64_t>(longest, prompts.examples().stored(i).length);
  return longest;
}

reward::Surroundings surroundings_of(Rank* rank) {
  reward::Surroundings surroundings;
  if (rank != nullptr) surroundings.should_stop = [rank] { return rank->stop_exit_code() != 0; };
  return surroundings;
}

std::filesystem::path samples_file(const std::filesystem::path& run_dir, int64_t step) {
  return run_dir / "rollouts" / fmt::format("step-{:06}.jsonl", step);
}

}  // namespace

void require_judgeable(const config::RunConfig& config, const data::Dataset& prompts) {
  const reward::Rewards rewards(config.train.rollouts.reward, {});
  for (int64_t i = 0; i < prompts.examples().size(); ++i)
    rewards.check_record(data::parse_json_text(prompts.examples().record_text_of(i)),
                         prompts.place_of(i));
}

/// Prompts and how they are answered.
struct Rollouts::Task {
  std::string name;  ///< the same on every rank, and used once
  const data::Dataset& data;
  const std::vector<int64_t>& prompts;  ///< of it
  size_t n = 1;                         ///< answers to each
  uint64_t number = 0;                  ///< its random numbers are others than those of other tasks
  int64_t step = 0;                     ///< steps that are done then
  bool keeps_samples = false;
};

/// An answer to a prompt while it is written: turns of the model and of the environment.
struct Rollouts::Conversation {
  std::vector<int32_t> tokens;                ///< behind the prompt
  std::vector<uint8_t> is_own;                ///< [tokens] whether the model wrote it
  std::vector<model::DrawnLogprob> logprobs;  ///< [tokens] NaN where it did not
  std::string text;                           ///< of the model's last turn
  nlohmann::ordered_json turns = nlohmann::ordered_json::array();
  int64_t num_own_turns = 0;
  bool is_cut_short = false, has_ended = false;
};

/// An answer that travels to all ranks.
struct Rollouts::Judged {
  size_t index = 0;
  train::RolloutAnswer answer;
  nlohmann::ordered_json sample;  ///< what is kept of it; null: nothing
};

namespace {

using Optionals = std::vector<std::optional<double>>;

Json json_of(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}
std::optional<double> optional_of(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}
Json json_of(const Optionals& values) {
  Json list = Json::array();
  for (const std::optional<double>& value : values) list.push_back(json_of(value));
  return list;
}

}  // namespace

Rollouts::Rollouts(const Inputs& inputs)
    : in_(inputs),
      model_(inputs.model),
      rewards_(inputs.config.train.rollouts.reward, surroundings_of(&inputs.model.rank)) {
  if (!in_.config.train.rollouts.environment.empty())
    environment_.emplace(in_.config, in_.text, surroundings_of(&inputs.model.rank).should_stop);
}

void Rollouts::finish() {
  rewards_.finish();
  if (environment_) environment_->finish();
}

/// Turns of an answer have other random numbers than the first one.
TextGenerator Rollouts::generator_of(uint64_t number, int64_t turn) const {
  constexpr uint64_t kTurnBits = 48;
  const config::RolloutsConfig& rollouts = in_.config.train.rollouts;
  return {
      in_.text,
      {.max_new_tokens = rollouts.max_new_tokens,
       .temperature = rollouts.temperature,
       .top_p = rollouts.top_p,
       .top_k = rollouts.top_k,
       .min_p = rollouts.min_p,
       .seed = seed_of(in_.config.train.seed, number ^ static_cast<uint64_t>(turn) << kTurnBits),
       .stop_tokens = {},
       .keeps_logprobs = true},
      {}};
}

void Rollouts::rehearse() {
  const config::RolloutsConfig& rollouts = in_.config.train.rollouts;
  const int64_t longest =
      std::max(longest_prompt(in_.train), in_.val != nullptr ? longest_prompt(*in_.val) : 0);
  const int64_t of_rank =
      *in_.config.train.global_batch_size.value / static_cast<int64_t>(model_.share().parts);
  const std::string lack = model_.lack_of_memory(
      {.rows = static_cast<size_t>(std::clamp<int64_t>(of_rank, 1, rollouts.batch_size)),
       .length = static_cast<size_t>(longest + rollouts.max_new_tokens)});
  if (!lack.empty())
    throw NoMemoryForAnswers(lack, "train.rollouts",
                             "lower train.rollouts.batch_size or train.rollouts.max_new_tokens");
}

namespace {

/// What each rank says when its conversations have gone on by a turn.
struct Progress {
  int stop_exit_code = 0;    // the largest of all ranks
  std::vector<size_t> open;  // conversations that go on, of all ranks
};

Progress progress_of_all(parallel::Communicator& comm, const Progress& own) {
  Progress all;
  const Json message = {{"stop", own.stop_exit_code}, {"open", own.open}};
  for (const std::string& text : comm.all_gather_texts(message.dump())) {
    const Json of_rank = Json::parse(text);
    all.stop_exit_code = std::max(all.stop_exit_code, of_rank["stop"].get<int>());
    for (const Json& index : of_rank["open"]) all.open.push_back(index.get<size_t>());
  }
  std::sort(all.open.begin(), all.open.end());
  return all;
}

}  // namespace

/// A program that fails ends the run after its last complete step: the ranks agree on that first.
int Rollouts::guarded(const std::function<int()>& work) {
  try {
    return work();
  } catch (const Error&) {
    failure_ = std::current_exception();
    return static_cast<int>(ExitCode::kWorkerFailed);
  }
}

void Rollouts::throw_failure() const {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

/// Writes the answers of this rank.   @return 0, or the exit code of a stop of any rank
int Rollouts::converse(const Task& task, Conversations& own) {
  std::vector<size_t> open(task.prompts.size() * task.n);
  for (size_t i = 0; i < open.size(); ++i) open[i] = i;
  for (int64_t turn = 0; !open.empty(); ++turn) {
    if (const int code = write_turns(task, turn, open, own)) return code;
    if (!environment_) return 0;
    Progress progress;
    progress.stop_exit_code = guarded([&] { return hear(task, own); });
    for (const auto& [index, conversation] : own)
      if (!conversation.has_ended) progress.open.push_back(index);
    progress = progress_of_all(model_.rank().comm(), progress);
    if (progress.stop_exit_code != 0) return progress.stop_exit_code;
    open = std::move(progress.open);
  }
  return 0;
}

/// The next turn of the model in open conversations.   @return 0, or the exit code of a stop
int Rollouts::write_turns(const Task& task, int64_t turn, const std::vector<size_t>& open,
                          Conversations& own) {
  const TextGenerator generator = generator_of(task.number, turn);
  const auto prompt = [&](size_t index) { return task.prompts[index / task.n]; };
  const at::NoGradGuard no_grad;
  const AnsweringModel::Whole whole(model_);
  parallel::MeshCopy copy = model_.ranks_of_copy();
  return AnsweringModel::answer(
      {.name = turn == 0 ? task.name : fmt::format("{}, turn {}", task.name, turn + 1),
       .rank = model_.rank(),
       .generator = generator,
       .decoder = model_.decoder(),
       .copy = &copy,
       .batch_size = static_cast<size_t>(in_.config.train.rollouts.batch_size),
       .records = open,
       .answers_per_record = task.n,
       .dealt = model_.share(),
       .logs_end = false,
       .prompt =
           [&](size_t index) {
             data::PromptTokens tokens = prompt_of(task.data.examples(), prompt(index));
             const std::vector<int32_t>& more = own[index].tokens;
             tokens.ids.insert(tokens.ids.end(), more.begin(), more.end());
             return tokens;
           },
       .on_answer =
           [&](size_t index, Answer&& answer) {
             Conversation& conversation = own[index];
             conversation.tokens.insert(conversation.tokens.end(), answer.token_ids.begin(),
                                        answer.token_ids.end());
             conversation.is_own.resize(conversation.tokens.size(), 1);
             conversation.logprobs.insert(conversation.logprobs.end(), answer.logprobs.begin(),
                                          answer.logprobs.end());
             conversation.turns.push_back({{"role", "assistant"}, {"content", answer.text}});
             conversation.text = std::move(answer.text);
             conversation.is_cut_short = conversation.has_ended = !answer.stopped;
             ++conversation.num_own_turns;
           },
       .place = [&](size_t index) { return task.data.place_of(prompt(index)); },
       .max_new_tokens =
           [&](size_t index) {
             return in_.config.train.rollouts.max_new_tokens - std::ssize(own[index].tokens);
           }});
}

/// What the environment says in the open conversations of this rank.
/// @return 0, or the exit code of a stop of this rank
int Rollouts::hear(const Task& task, Conversations& own) {
  std::vector<size_t> indices;
  for (auto& [index, conversation] : own) {
    conversation.has_ended =
        conversation.has_ended || conversation.num_own_turns >= in_.config.train.rollouts.max_turns;
    if (!conversation.has_ended) indices.push_back(index);
  }
  for (size_t first = 0; first < indices.size(); first += kJudgedTogether) {
    const std::span together =
        std::span(indices).subspan(first, std::min(kJudgedTogether, indices.size() - first));
    std::vector<Json> lines;
    for (const size_t index : together) {
      const Conversation& conversation = own.at(index);
      const Json record =
          data::parse_json_text(task.data.examples().record_text_of(task.prompts[index / task.n]));
      Json line = reward::judged_record(
          {.text = conversation.text, .record = &record, .prompt = reward::prompt_of(record)});
      line["turns"] = conversation.turns;
      lines.push_back(std::move(line));
    }
    try {
      const std::vector<std::optional<OutsideTurn>> said = environment_->ask(lines);
      for (size_t i = 0; i < together.size(); ++i)
        add(task, own.at(together[i]), said[i], together[i]);
    } catch (const Error&) {
      if (const int code = model_.rank().stop_exit_code()) return code;
      throw;
    }
  }
  return 0;
}

/// @param turn of the environment; nullopt: the conversation has ended
void Rollouts::add(const Task& task, Conversation& conversation,
                   const std::optional<OutsideTurn>& turn, size_t index) const {
  conversation.has_ended = !turn;
  if (!turn) return;
  const std::vector<int32_t> between =
      environment_->tokens_between(*turn, conversation.tokens.back());
  const int64_t left = in_.config.train.rollouts.max_new_tokens - std::ssize(conversation.tokens) -
                       std::ssize(between);
  if (between.empty())
    throw DataError("the program of the environment says an empty turn",
                    task.data.place_of(task.prompts[index / task.n]),
                    "print null where a conversation has ended");
  if (left <= 0) {  // no room for another turn of the model
    conversation.is_cut_short = conversation.has_ended = true;
    return;
  }
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  conversation.tokens.insert(conversation.tokens.end(), between.begin(), between.end());
  conversation.is_own.resize(conversation.tokens.size(), 0);
  conversation.logprobs.resize(conversation.tokens.size(), {.model = kNone, .drawn = kNone});
  conversation.turns.push_back({{"role", turn->role}, {"content", turn->content}});
}

/// Without its reward.
Rollouts::Judged Rollouts::judged_of(const Task& task, size_t index,
                                     const Conversation& conversation) const {
  const config::RolloutsConfig& rollouts = in_.config.train.rollouts;
  Judged judged{.index = index, .answer = {}, .sample = {}};
  train::RolloutAnswer& answer = judged.answer;
  answer.tokens = conversation.tokens;
  const bool is_all_own = std::ranges::find(conversation.is_own, 0) == conversation.is_own.end();
  if (!is_all_own) answer.is_own = conversation.is_own;
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    if (!answer.owns(i)) continue;
    answer.drawn_logps.push_back(conversation.logprobs[i].drawn);
    answer.entropy += conversation.logprobs[i].entropy;
  }
  answer.turns = conversation.num_own_turns;
  answer.is_cut_short = conversation.is_cut_short;
  if (!task.keeps_samples || index / task.n >= static_cast<size_t>(rollouts.num_samples))
    return judged;
  const Answer written{.text = conversation.text,
                       .num_tokens = static_cast<size_t>(answer.num_own()),
                       .stopped = !conversation.is_cut_short,
                       .token_ids = conversation.tokens,
                       .logprobs = conversation.logprobs};
  judged.sample = record_of(written);
  judged.sample.update(sample_of(written,
                                 prompt_of(task.data.examples(), task.prompts[index / task.n]).ids,
                                 rollouts.changes_distribution()));
  if (!is_all_own) judged.sample["completion_mask"] = conversation.is_own;
  if (environment_) judged.sample["turns"] = conversation.turns;
  return judged;
}

/// Judges the answers of this rank.   @return 0, or the exit code of a stop of this rank
int Rollouts::judge(const Task& task, const Conversations& own, std::vector<Judged>& judged) {
  std::vector<Json> records;
  std::vector<reward::Answer> answers;
  records.reserve(own.size());  // answers point to them
  for (const auto& [index, conversation] : own) {
    const int64_t prompt = task.prompts[index / task.n];
    records.push_back(data::parse_json_text(task.data.examples().record_text_of(prompt)));
    Json asked = reward::prompt_of(records.back());
    if (environment_) records.back()["turns"] = conversation.turns;
    judged.push_back(judged_of(task, index, conversation));
    answers.push_back({.text = conversation.text,
                       .record = &records.back(),
                       .prompt = std::move(asked),
                       .num_tokens = judged.back().answer.num_own(),
                       .token_ids = std::span<const int32_t>(conversation.tokens),
                       .where = task.data.place_of(prompt)});
  }
  for (size_t first = 0; first < answers.size(); first += kJudgedTogether) {
    const std::span together =
        std::span(answers).subspan(first, std::min(kJudgedTogether, answers.size() - first));
    reward::Judgement judgement;
    try {
      judgement = rewards_.judge(together);
    } catch (const Error&) {
      if (const int code = model_.rank().stop_exit_code()) return code;
      throw;
    }
    for (size_t i = 0; i < together.size(); ++i) {
      train::RolloutAnswer& answer = judged[first + i].answer;
      answer.reward = judgement.rewards[i];
      for (const std::vector<reward::Value>& of_function : judgement.values)
        answer.values.push_back(of_function[i]);
    }
  }
  return 0;
}

namespace {

Json json_of(const train::RolloutAnswer& answer, bool has_logps) {
  Json json = {{"tokens", answer.tokens},
               {"is_own", answer.is_own},
               {"entropy", answer.entropy},
               {"turns", answer.turns},
               {"is_cut_short", answer.is_cut_short},
               {"reward", json_of(answer.reward)},
               {"values", json_of(answer.values)}};
  if (has_logps) json["drawn_logps"] = answer.drawn_logps;
  return json;
}

train::RolloutAnswer answer_of(const Json& json) {
  train::RolloutAnswer answer{.tokens = json.at("tokens").get<std::vector<int32_t>>(),
                              .is_own = json.at("is_own").get<std::vector<uint8_t>>(),
                              .drawn_logps = {},
                              .entropy = json.at("entropy").get<double>(),
                              .turns = json.at("turns").get<int64_t>(),
                              .is_cut_short = json.at("is_cut_short").get<bool>(),
                              .reward = optional_of(json.at("reward")),
                              .values = {}};
  if (json.contains("drawn_logps"))
    answer.drawn_logps = json["drawn_logps"].get<std::vector<float>>();
  for (const Json& value : json.at("values")) answer.values.push_back(optional_of(value));
  return answer;
}

}  // namespace

/// Answers and judgements of all ranks. A stop of one is one of all.
train::Rollout Rollouts::answer(const Task& task) {
  train::Rollout rollout;
  const double began = monotonic_seconds();
  Conversations own;
  rollout.stop_exit_code = converse(task, own);
  if (rollout.stop_exit_code != 0) return rollout;
  const double written = monotonic_seconds();
  std::vector<Judged> judged;
  const int code = guarded([&] { return judge(task, own, judged); });
  Json message = {{"stop", code}, {"answers", Json::array()}};
  const bool has_logps = in_.config.train.rollouts.changes_distribution();
  if (code == 0)
    for (const Judged& one : judged)
      message["answers"].push_back({one.index, json_of(one.answer, has_logps), one.sample});
  const std::vector<uint8_t> packed = Json::to_msgpack(message);
  std::vector<Judged> all(task.prompts.size() * task.n);
  for (const std::string& text :
       model_.rank().comm().all_gather_texts({packed.begin(), packed.end()})) {
    const Json of_rank = Json::from_msgpack(text.begin(), text.end());
    rollout.stop_exit_code = std::max(rollout.stop_exit_code, of_rank["stop"].get<int>());
    for (const Json& one : of_rank["answers"]) {
      const auto index = one[0].get<size_t>();
      all.at(index) = {index, answer_of(one[1]), one[2]};
    }
  }
  rollout.seconds = monotonic_seconds() - began;
  rollout.reward_seconds = rollout.seconds - (written - began);
  if (rollout.stop_exit_code != 0) return rollout;
  if (task.keeps_samples && model_.rank().is_main()) keep_samples(task, all);
  for (Judged& one : all) rollout.answers.push_back(std::move(one.answer));
  return rollout;
}

/// Lines as `sftrun generate` and `sftrun reward` write them.
void Rollouts::keep_samples(const Task& task, const std::vector<Judged>& all) const {
  const config::RewardSpecs& specs = in_.config.train.rollouts.reward;
  std::string lines;
  for (const Judged& one : all) {
    if (one.sample.is_null()) break;
    const size_t place = one.index / task.n;
    Json line = data::parse_json_text(task.data.examples().record_text_of(task.prompts[place]));
    line.update(one.sample);
    line["group"] = place;
    line["reward"] = json_of(one.answer.reward);
    for (size_t f = 0; f < specs.size(); ++f)
      line["rewards"][specs[f].label] = json_of(one.answer.values[f]);
    lines += to_json_text(line) + "\n";
  }
  const std::filesystem::path file = samples_file(in_.run_dir, task.step + 1);
  make_directories(file.parent_path());
  write_file_atomically(file, lines);
}

train::Rollout Rollouts::write(int64_t step, const std::vector<int64_t>& prompts) {
  const config::TrainConfig& train = in_.config.train;
  const int64_t every = std::max<int64_t>(1, train.logging_steps);
  return answer({.name = fmt::format("step {} rollouts", step + 1),
                 .data = in_.train,
                 .prompts = prompts,
                 .n = static_cast<size_t>(train.rollouts.n),
                 .number = static_cast<uint64_t>(step),
                 .step = step,
                 .keeps_samples = train.rollouts.num_samples > 0 && (step + 1) % every == 0});
}

train::AnswerEvaluation Rollouts::evaluate(int64_t step) {
  std::vector<int64_t> prompts(static_cast<size_t>(in_.val->examples().size()));
  for (size_t i = 0; i < prompts.size(); ++i) prompts[i] = static_cast<int64_t>(i);
  const train::Rollout rollout = answer({.name = fmt::format("evaluation after step {}", step),
                                         .data = *in_.val,
                                         .prompts = prompts,
                                         .number = kOfEvaluations,
                                         .step = step});
  train::AnswerEvaluation evaluation{.stop_exit_code = rollout.stop_exit_code,
                                     .scores = std::nullopt,
                                     .rewards = {},
                                     .seconds = rollout.seconds,
                                     .num_answers = std::ssize(rollout.answers),
                                     .samples = {}};
  if (rollout.stop_exit_code != 0) return evaluation;
  std::vector<double> rewards, lengths, cut_short;
  for (const train::RolloutAnswer& answer : rollout.answers) {
    if (answer.reward) rewards.push_back(*answer.reward);
    lengths.push_back(static_cast<double>(answer.num_own()));
    cut_short.push_back(answer.is_cut_short ? 1 : 0);
  }
  if (!rewards.empty()) evaluation.rewards.emplace_back("reward", mean_of(rewards));
  evaluation.rewards.emplace_back("completions/mean_length", mean_of(lengths));
  evaluation.rewards.emplace_back("completions/clipped_ratio", mean_of(cut_short));
  for (auto& metric : train::answer_metrics(rollout.answers, in_.config.train.rollouts.reward))
    evaluation.rewards.push_back(std::move(metric));
  return evaluation;
}

}  // namespace sftrun::engine
