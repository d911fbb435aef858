#include "sampled_answer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nulls.h"
#include "sftrun/config/objectives.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/record_error.h"

namespace sftrun::data {
namespace {

constexpr const char *kPromptIds = "prompt_ids", *kCompletionIds = "completion_ids",
                     *kMask = "completion_mask", *kLogps = "logprobs",
                     *kSampledLogps = "sampling_logprobs";

/// Cells of tables, and columns that data.fields names, may be texts.
bool is_list_as_text(const Json& value) {
  return value.is_string() && trim(value.get_ref<const std::string&>()).starts_with('[');
}

bool is_list(const Json& record, const char* key) {
  const Json* value = value_of(record, key);
  return value != nullptr && (value->is_array() || is_list_as_text(*value));
}

/// The record with lists in place of their texts; a text that is no JSON stays.
Json with_lists(Json record) {
  for (const char* key : {kPromptIds, kCompletionIds, kMask, kLogps, kSampledLogps}) {
    const Json* value = value_of(record, key);
    if (value == nullptr || !is_list_as_text(*value)) continue;
    Json list = parse_json_text(trim(value->get_ref<const std::string&>()));
    if (list.is_array()) record[key] = std::move(list);
  }
  return record;
}

constexpr const char* kIdsOrTexts =
    "write \"prompt_ids\" and \"completion_ids\" in every record of a data set, or in none";

/// @throws DataError naming what the record has instead
void require_ids(const Json& record, const char* key, const std::string& where) {
  const Json* value = value_of(record, key);
  if (value != nullptr && value->is_array()) return;
  throw DataError(
      value == nullptr
          ? fmt::format("the record has no \"{}\", as the first record of its data set has", key)
          : fmt::format("\"{}\" must be a list of token ids, not {}", key,
                        excerpt(to_json_text(*value))),
      where, kIdsOrTexts);
}

/// Appends token ids that the model has.
void append_ids(const Json& record, const char* key, const TextModel& model,
                const std::string& where, std::vector<tokenizer::TokenId>& ids) {
  require_ids(record, key, where);
  // A model may have rows for more tokens than its tokenizer, and sample them.
  const int64_t size =
      std::max<int64_t>(model.tokenizer->vocab_size(), model.num_embeddings.value_or(0));
  for (size_t i = 0; i < record[key].size(); ++i) {
    const Json& id = record[key][i];
    const bool is_known = id.is_number_integer() && id >= 0 && id < size;
    if (!is_known)
      throw DataError(
          fmt::format("{}[{}] is {}, which is no token of the model, whose tokens are 0 "
                      "to {}",
                      key, i, excerpt(to_json_text(id)), size - 1),
          where,
          "write the ids of the model's own tokenizer, or the texts: "
          "{\"prompt\": …, \"completion\": …}");
    ids.push_back(id.get<tokenizer::TokenId>());
  }
}

/// Text and spans of tokens, each by itself: what they were made from is not known.
void spell(Sequence& sequence, size_t num_prompt, const TextModel& model, bool with_parts) {
  uint32_t prompt_end = 0;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    const auto begin = static_cast<uint32_t>(sequence.text.size());
    sequence.text += model.tokenizer->token_bytes(sequence.ids[i], /*skip_special_tokens=*/false);
    sequence.spans.push_back({begin, static_cast<uint32_t>(sequence.text.size())});
    if (i < num_prompt) prompt_end = sequence.spans.back().end;
  }
  if (!with_parts) return;
  if (num_prompt > 0) sequence.parts.push_back({{0, prompt_end}, "prompt"});
  sequence.parts.push_back(
      {{prompt_end, static_cast<uint32_t>(sequence.text.size())}, "completion"});
}

void set_mask(Sequence& sequence, const Json& record, const std::string& where) {
  const auto num_prompt = static_cast<size_t>(sequence.num_prompt_tokens);
  sequence.mask.assign(sequence.ids.size(), 0);
  const bool has_mask = value_of(record, kMask) != nullptr;
  if (has_mask &&
      (!record[kMask].is_array() || record[kMask].size() != record[kCompletionIds].size()))
    throw DataError(fmt::format("\"{}\" must be a list as long as \"{}\"", kMask, kCompletionIds),
                    where, "write 1 for tokens of the model, 0 for others");
  for (size_t i = num_prompt; i < sequence.ids.size(); ++i) {
    const Json one = has_mask ? record[kMask][i - num_prompt] : Json(1);
    if (one != 0 && one != 1)
      throw DataError(fmt::format("{}[{}] must be 0 or 1, not {}", kMask, i - num_prompt,
                                  excerpt(to_json_text(one))),
                      where, "write 1 for tokens of the model, 0 for others");
    sequence.mask[i] = one == 1 ? 1 : 0;
  }
}

/// Of each token of the sequence; NaN where there is none. Empty: the record has no such list.
std::vector<float> logps_of(const Sequence& sequence, const Json& record, const char* key,
                            const std::string& where) {
  if (value_of(record, key) == nullptr) return {};
  const auto num_prompt = static_cast<size_t>(sequence.num_prompt_tokens);
  const bool fits = has_sampled_ids(record) && record[key].is_array() &&
                    record[key].size() == sequence.ids.size() - num_prompt;
  if (!fits)
    throw DataError(
        fmt::format("\"{}\" must be a list of numbers, one for each of \"{}\"", key,
                    kCompletionIds),
        where,
        has_sampled_ids(record)
            ? "write the log-probability of each token of the completion"
            : fmt::format("write \"{}\" and \"{}\", too: texts may be tokenized in another way",
                          kPromptIds, kCompletionIds));
  std::vector<float> logps(sequence.ids.size(), std::numeric_limits<float>::quiet_NaN());
  for (size_t i = num_prompt; i < logps.size(); ++i) {
    const Json& one = record[key][i - num_prompt];
    if (one.is_null()) continue;
    const double logp = one.is_number() ? one.get<double>() : 1;
    if (!(logp <= 0) || !std::isfinite(logp))
      throw DataError(fmt::format("{}[{}] must be a natural logarithm of a probability, not {}",
                                  key, i - num_prompt, excerpt(to_json_text(one))),
                      where, "write a number of at most 0, or null where it is not known");
    logps[i] = static_cast<float>(logp);
  }
  return logps;
}

double number_of(const Json& record, const char* key, const std::string& where) {
  const Json& value = record[key];
  constexpr double kMost = 1e12;  // sums of squares stay finite
  const Json read =
      value.is_string() ? parse_json_text(trim(value.get_ref<const std::string&>())) : value;
  const double number = read.is_number() ? read.get<double>() : NAN;
  if (!(std::abs(number) <= kMost))
    throw DataError(fmt::format("\"{}\" must be a number from -{:g} to {:g}, not {}", key, kMost,
                                kMost, excerpt(to_json_text(value))),
                    where, "write a number, or leave the record out");
  return number;
}

uint64_t hash_of(std::string_view text) {
  const uint64_t hash = xxh3_64(std::as_bytes(std::span(text)));
  return hash == 0 ? 1 : hash;
}

/// Answers to the same prompt are a group, unless the record names one.
uint64_t group_of(const Sequence& sequence, const Json& record, const std::string& where) {
  const Json* group = value_of(record, "group");
  if (group == nullptr) {
    const std::span prompt(sequence.ids.data(), static_cast<size_t>(sequence.num_prompt_tokens));
    const auto bytes = std::as_bytes(prompt);
    return hash_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  const bool is_long = is_kept_integer(*group) || is_kept_fraction(*group);
  if (!group->is_number() && !is_long && !group->is_string())
    throw DataError(fmt::format("\"group\" must be a number or a string, not {}",
                                excerpt(to_json_text(*group))),
                    where, "give answers to the same prompt the same number");
  return hash_of(is_long ? number_text(*group) : group->dump());
}

}  // namespace

bool has_sampled_ids(const Json& record) {
  return is_list(record, kPromptIds) && is_list(record, kCompletionIds);
}

bool has_reward(const Json& record) {
  return value_of(record, "reward") != nullptr || value_of(record, "advantage") != nullptr;
}

namespace {

/// Reward, group, log-probabilities and the end of an answer.
void take_sample(Sequence& sequence, const Json& record, const std::string& where) {
  if (!has_reward(record))
    throw RecordError(
        "the record has no \"reward\" or \"advantage\", which say how good its answer is", where,
        "name the column: data.fields: {reward: COLUMN}", "write \"reward\": a number");
  const bool is_advantage = value_of(record, "advantage") != nullptr;
  sequence.score = number_of(record, is_advantage ? "advantage" : "reward", where);
  sequence.score_kind = is_advantage ? ScoreKind::kAdvantage : ScoreKind::kReward;
  sequence.group = group_of(sequence, record, where);
  sequence.old_logps = logps_of(sequence, record, kLogps, where);
  sequence.sampled_logps = logps_of(sequence, record, kSampledLogps, where);
  const Json* end = value_of(record, "finish_reason");
  sequence.is_cut_short = end != nullptr && *end == "length";
  sequence.num_empty_answers = 0;  // its reward says what an empty answer is worth
}

}  // namespace

Sequence sequence_of_ids(const Json& given, const TextModel& model, const SequenceOptions& options,
                         const std::string& where) {
  const Json record = with_lists(given);
  Sequence sequence;
  append_ids(record, kPromptIds, model, where, sequence.ids);
  sequence.num_prompt_tokens = std::ssize(sequence.ids);
  append_ids(record, kCompletionIds, model, where, sequence.ids);
  set_mask(sequence, record, where);
  spell(sequence, static_cast<size_t>(sequence.num_prompt_tokens), model, options.with_parts);
  take_sample(sequence, record, where);
  return sequence;
}

void set_sample(Sequence& sequence, const Json& record, const std::string& where) {
  for (const char* key : {kPromptIds, kCompletionIds, kMask})
    if (value_of(record, key) != nullptr)
      throw DataError(
          fmt::format("the record has \"{}\", and is read as a text, as the first record "
                      "of its data set",
                      key),
          where, kIdsOrTexts);
  take_sample(sequence, record, where);
}

}  // namespace sftrun::data
