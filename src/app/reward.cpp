#include "reward.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "judged_part.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/input_records.h"
#include "sftrun/observe/system.h"
#include "sftrun/reward/rewards.h"

namespace sftrun::app {
namespace {

using data::Json;

/// A record and what functions read of it.
struct JudgedRecord {
  const data::InputRecord* input = nullptr;
  std::string text;
  std::vector<int32_t> token_ids;
  bool has_ids = false;
  reward::Answer answer;
};

/// The text of a string, or of the only message of a list.
std::string text_of_answer(const Json& value, const std::string& key, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  const bool is_message = value.is_array() && value.size() == 1 && value[0].is_object() &&
                          value[0].contains("content") && value[0]["content"].is_string();
  if (is_message) return value[0]["content"].get<std::string>();
  throw DataError(fmt::format("\"{}\" is {}, not the text of an answer", key, json_type(value)),
                  where, "write a text, or name its key with --answer");
}

std::string answer_key_of(const Json& record, const RewardOptions& options,
                          const std::string& where) {
  if (!options.answer_key.empty()) {
    if (record.contains(options.answer_key)) return options.answer_key;
    throw DataError(fmt::format("the record has no \"{}\"", options.answer_key), where,
                    "name the key that has the answer with --answer");
  }
  for (const char* key : {"generated", "completion"})
    if (record.contains(key)) return key;
  throw DataError("the record has no answer: neither \"generated\" nor \"completion\"", where,
                  "generate answers with `sftrun generate`, or name their key with --answer");
}

void read_tokens(const Json& record, const std::string& where, JudgedRecord& judged) {
  const auto ids = record.find("completion_ids");
  if (ids != record.end()) {
    try {
      judged.token_ids = ids->get<std::vector<int32_t>>();
    } catch (const Json::exception&) {
      throw DataError("\"completion_ids\" is not a list of token ids", where,
                      "generate the answers with --logprobs");
    }
    judged.has_ids = true;
    judged.answer.num_tokens = std::ssize(judged.token_ids);
  } else if (const auto count = record.find("generated_tokens");
             count != record.end() && count->is_number_integer()) {
    judged.answer.num_tokens = count->get<int64_t>();
  }
}

std::vector<JudgedRecord> judged_records(const std::vector<data::InputRecord>& inputs,
                                         const RewardOptions& options) {
  std::vector<JudgedRecord> records(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [line, record, where, folder] = inputs[i];
    JudgedRecord& judged = records[i];
    judged.input = &inputs[i];
    const std::string key = answer_key_of(record, options, where);
    judged.text = text_of_answer(record[key], key, where);
    read_tokens(record, where, judged);
    judged.answer.text = judged.text;
    judged.answer.record = &record;
    judged.answer.prompt = reward::prompt_of(record);
    judged.answer.where = where;
    if (judged.has_ids) judged.answer.token_ids = judged.token_ids;
  }
  return records;
}

Json number_or_null(const reward::Value& value) {
  return value ? Json(*value) : Json();
}

/// Of the values that are there (Welford's algorithm).
class Moments {
 public:
  void add(const reward::Value& value) {
    if (!value) return;
    differs_ |= count_ > 0 && *value != last_;
    last_ = *value;
    ++count_;
    const double before = *value - mean_;
    mean_ += before / static_cast<double>(count_);
    squares_ += before * (*value - mean_);
  }
  int64_t count() const { return count_; }
  double mean() const { return mean_; }
  /// As of a sample.
  double deviation() const {
    return count_ < 2 ? 0 : std::sqrt(squares_ / static_cast<double>(count_ - 1));
  }
  bool differs() const { return differs_; }
  Json json() const {
    return {{"count", count_}, {"mean", count_ > 0 ? Json(mean_) : Json()}, {"std", deviation()}};
  }

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0, last_ = 0;
  bool differs_ = false;
};

/// What all answers got.
class Summary {
 public:
  explicit Summary(const config::RewardSpecs& specs) : specs_(specs), of_functions_(specs.size()) {}

  void add(const Json& record, const reward::Judgement& judgement, size_t i) {
    total_.add(judgement.rewards[i]);
    for (size_t f = 0; f < of_functions_.size(); ++f) of_functions_[f].add(judgement.values[f][i]);
    if (const auto group = record.find("group"); group != record.end())
      groups_[to_json_text(*group)].add(judgement.rewards[i]);
  }

  Json json() const {
    Json json = {{"reward", total_.json()}, {"rewards", Json::object()}};
    for (size_t f = 0; f < of_functions_.size(); ++f)
      json["rewards"][specs_[f].label] = of_functions_[f].json();
    if (!groups_.empty()) {
      json["groups"] = groups_.size();
      json["groups_without_difference"] = num_equal_groups();
    }
    return json;
  }

  void log() const {
    for (size_t f = 0; f < of_functions_.size(); ++f) log_line(specs_[f].label, of_functions_[f]);
    if (of_functions_.size() > 1) log_line("reward", total_);
    if (!groups_.empty())
      log::info("{} of {} have equal rewards, from which GRPO learns nothing", num_equal_groups(),
                counted(groups_.size(), "group"));
  }

 private:
  static void log_line(const std::string& name, const Moments& moments) {
    if (moments.count() == 0) return log::info("{}: no value", name);
    log::info("{}: mean {:.4g}, standard deviation {:.4g}, of {}", name, moments.mean(),
              moments.deviation(), counted(moments.count(), "answer"));
  }
  size_t num_equal_groups() const {
    size_t count = 0;
    for (const auto& [name, moments] : groups_) count += moments.differs() ? 0 : 1;
    return count;
  }

  const config::RewardSpecs& specs_;
  std::vector<Moments> of_functions_;
  Moments total_;
  std::map<std::string, Moments> groups_;
};

Json additions_of(const config::RewardSpecs& specs, const reward::Judgement& judgement, size_t i) {
  Json values = Json::object();
  for (size_t f = 0; f < specs.size(); ++f)
    values[specs[f].label] = number_or_null(judgement.values[f][i]);
  return {{"reward", number_or_null(judgement.rewards[i])}, {"rewards", std::move(values)}};
}

/// Records of a batch with their judgement, as lines with their ends.
std::string lines_of(const std::vector<JudgedRecord>& records, size_t first, size_t count,
                     const reward::Judgement& judgement, const RewardOptions& options) {
  std::string lines;
  for (size_t i = 0; i < count; ++i)
    lines += data::output_line(*records[first + i].input, additions_of(options.specs, judgement, i),
                               options.output) +
             "\n";
  return lines;
}

/// The judgement that a line has.
reward::Judgement judgement_in(const std::string& line, const config::RewardSpecs& specs) {
  const Json record = parse_exact_json(line);
  const auto value_in = [](const Json& object, const std::string& key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_number() ? reward::Value(found->get<double>())
                                                       : std::nullopt;
  };
  reward::Judgement judgement;
  judgement.rewards.push_back(value_in(record, "reward"));
  for (const config::RewardSpec& spec : specs)
    judgement.values.push_back({value_in(record.value("rewards", Json::object()), spec.label)});
  return judgement;
}

/// Changes with the records, and with what judges them.
std::string key_of(const std::vector<data::InputRecord>& inputs, const RewardOptions& options) {
  Fingerprint key;
  key.add(options.answer_key).add(options.output);
  for (const config::RewardSpec& spec : options.specs)
    key.add(key_of_judge(fmt::format("{} {} {}", spec.label, spec.weight, spec.settings.dump()),
                         spec.settings.value("command", std::string())));
  for (const data::InputRecord& input : inputs) key.add(input.line);
  return key.hex();
}

/// What a command that is stopped keeps; nullopt: the output is a stream, or all records are judged
/// together.
std::optional<JudgedPart> part_of(const std::vector<data::InputRecord>& inputs,
                                  const RewardOptions& options) {
  const bool is_file =
      options.output != "-" && (!leads_to_file(options.output) || is_plain_file(options.output));
  if (!is_file || std::ssize(inputs) <= options.batch_size) return std::nullopt;
  JudgedPart part(options.output, key_of(inputs, options));
  if (options.overwrite && !part.lines().empty()) {
    part.remove();
    return JudgedPart(options.output, key_of(inputs, options));
  }
  if (!part.lines().empty())
    log::info(
        "{} of {} have been judged before, and are not judged again ({}); --overwrite judges "
        "all",
        part.lines().size(), counted(inputs.size(), "record"), part.path().string());
  return part;
}

}  // namespace

int run_reward(const RewardOptions& options) {
  reward::Rewards rewards(options.specs, {});
  const std::vector<data::InputRecord> inputs =
      data::read_input_records(options.input, static_cast<int>(observe::available_cpus()));
  const std::vector<JudgedRecord> records = judged_records(inputs, options);
  for (const JudgedRecord& judged : records)
    rewards.check_record(judged.input->record, judged.input->where);
  rewards.rehearse();
  Summary summary(rewards.specs());
  std::optional<JudgedPart> part = part_of(inputs, options);
  std::string lines;
  size_t first = 0;
  if (part)
    for (const std::string& line : part->lines()) {
      summary.add(records[first++].input->record, judgement_in(line, rewards.specs()), 0);
      lines += line + "\n";
    }
  while (first < records.size()) {
    std::vector<reward::Answer> batch;
    const size_t end = std::min(records.size(), first + static_cast<size_t>(options.batch_size));
    for (size_t i = first; i < end; ++i) batch.push_back(records[i].answer);
    const reward::Judgement judgement = rewards.judge(batch);
    for (size_t i = 0; i < batch.size(); ++i)
      summary.add(records[first + i].input->record, judgement, i);
    const std::string more = lines_of(records, first, batch.size(), judgement, options);
    if (part) part->append(more);
    lines += more;
    first = end;
  }
  rewards.finish();
  data::write_records(options.output, lines);
  if (part) part->remove();
  if (options.json)
    fmt::print("{}\n", to_json_text(summary.json()));
  else
    summary.log();
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
