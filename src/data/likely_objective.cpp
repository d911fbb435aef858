#include "sftrun/data/likely_objective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "class_labels.h"
#include "field_map.h"
#include "formats/readers.h"
#include "nulls.h"
#include "record.h"
#include "retrieval_record.h"
#include "sampled_answer.h"
#include "sftrun/config/record_formats.h"
#include "sftrun/config/value.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/sequence.h"

namespace sftrun::data {
namespace {

/// Numbers beside a conversation may be classes; true and false say whether its answer is good.
bool is_judged(const Json& record) {
  if (!has_judgement(record)) return false;
  const Json* label = value_of(record, "label");
  const bool is_number = label != nullptr && label->is_number();
  return value_of(record, "kto_tag") != nullptr || value_of(record, "completion") != nullptr ||
         (!is_number && value_of(record, "text") == nullptr);
}

/// @param turns as OpenAI or ShareGPT write them
bool ends_with_question(const Json& turns) {
  if (!turns.is_array() || turns.empty() || !turns.back().is_object()) return false;
  for (const char* role : {"role", "from"})
    if (const Json* of_last = value_of(turns.back(), role))
      return *of_last == "user" || *of_last == "human";
  return false;
}

/// Numbers, and solutions of GSM8K and MATH, which end in one.
bool holds_number(const Json& value) {
  if (value.is_number()) return true;
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return config::parse_double(trim(text)).has_value() || text.find("####") != std::string::npos ||
         text.find("\\boxed") != std::string::npos;
}

/// Usual names of a column with a question, and with its answer: the longer text first (MATH has
/// "solution" and "answer"); and of a question that has no answer.
constexpr auto kQuestions = std::to_array<std::string_view>(
    {"question", "query", "problem", "instruction", "prompt", "input"});
constexpr auto kQuestionsAlone = std::to_array<std::string_view>({"question", "query", "problem"});
constexpr auto kAnswers = std::to_array<std::string_view>(
    {"response", "solution", "completion", "output", "answer", "reply", "target"});

/// Usual names of what belongs to a question, of the system message, and of what says whether an answer is a good one.
constexpr auto kContexts = std::to_array<std::string_view>({"context"});
constexpr auto kSystems =
    std::to_array<std::string_view>({"system", "system_prompt", "system_message"});
constexpr auto kJudgements = std::to_array<std::string_view>(
    {"thumbs_up", "is_desirable", "desirable", "liked", "upvoted", "is_good"});

/// The column with a text whose name, in any case, is the first of these that there is; empty: none.
std::string text_column(const Json& record, std::span<const std::string_view> names) {
  for (const std::string_view name : names)
    for (const auto& [key, value] : record.items())
      if (value.is_string() && ascii_lower(key) == name) return key;
  return {};
}

/// Whether a format of one answer reads the record.
bool is_read_as_answer(const Json& record) {
  return std::any_of(config::kRecordFormats.begin(), config::kRecordFormats.end(),
                     [&](const config::RecordFormatInfo& info) {
                       return info.gives(config::ExampleForm::kAnswer) &&
                              !reason_for(info.format, record).empty();
                     });
}

/// Without names that are right already.
Json fields_of(std::initializer_list<std::pair<const char*, std::string>> ours_and_theirs) {
  Json fields = Json::object();
  for (const auto& [ours, theirs] : ours_and_theirs)
    if (ours != theirs) fields[ours] = theirs;
  return fields;
}

/// true, false, 1 or 0, or one of these as text.
bool holds_judgement(const Json& value) {
  if (value.is_boolean()) return true;
  if (value.is_number()) return value == 0 || value == 1;
  if (!value.is_string()) return false;
  const std::string word = ascii_lower(std::string(trim(value.get_ref<const std::string&>())));
  return word == "true" || word == "false" || word == "1" || word == "0";
}

/// What Alpaca records have beside the question, under other names: {"input": "context", "system": "system_prompt"}.
Json fields_beside_question(const Json& record) {
  Json fields = Json::object();
  const std::string context = text_column(record, kContexts),
                    system = text_column(record, kSystems);
  if (!context.empty() && value_of(record, "input") == nullptr) fields["input"] = context;
  if (!system.empty() && system != "system") fields["system"] = system;
  return fields;
}

bool has_beside_question(const Json& record) {
  return !fields_beside_question(record).empty() || value_of(record, "system") != nullptr;
}

/// Alpaca's names for a question, and what belongs to it.
Json fields_of_question(const Json& record, const std::string& question) {
  Json fields = fields_of({{"instruction", question}});
  fields.update(fields_beside_question(record));
  return fields;
}

/// Of two answers that are texts, to a question of a usual name.
Json fields_of_preference(const Json& record) {
  const Json* chosen = value_of(record, "chosen");
  if (chosen == nullptr || !chosen->is_string()) return Json::object();
  for (const char* read : {"messages", "conversations"})
    if (value_of(record, read) != nullptr) return Json::object();
  const Json* prompt = value_of(record, "prompt");
  const bool has_prompt = prompt != nullptr;
  if (has_prompt && (!prompt->is_string() || !has_beside_question(record))) return Json::object();
  const std::string question = has_prompt ? "prompt" : text_column(record, kQuestions);
  if (question.empty()) return Json::object();
  if (has_beside_question(record)) return fields_of_question(record, question);
  return fields_of({{"prompt", question}});
}

/// Of a record that a format of one answer reads as it is, what it leaves out.
Json fields_beside_answer(const Json& record) {
  const Json beside = fields_beside_question(record);
  if (value_of(record, "messages") != nullptr) return Json::object();
  if (value_of(record, "conversations") != nullptr)
    return beside.contains("system") ? Json{{"system", beside["system"]}} : Json::object();
  if (value_of(record, "instruction") != nullptr && value_of(record, "output") != nullptr)
    return beside;
  const Json *prompt = value_of(record, "prompt"), *completion = value_of(record, "completion");
  const bool are_texts =
      prompt != nullptr && prompt->is_string() && completion != nullptr && completion->is_string();
  if (!are_texts || !has_beside_question(record)) return Json::object();
  Json fields = fields_of_question(record, "prompt");
  fields["output"] = "completion";
  return fields;
}

}  // namespace

config::Objective likely_objective(const Json& record) {
  using enum config::Objective;
  if (is_preference(record)) return kDpo;
  if (has_reward(record)) return kGrpo;
  if (has_retrieval(record)) return kEmbed;
  if (is_judged(record) || !likely_fields_of_label(record).empty()) return kKto;
  if (has_class(record)) return kClassify;
  return is_prompt_alone(record) ? kGrpo : kSft;
}

bool is_prompt_alone(const Json& record) {
  for (const char* answer : {"completion", "response", "output", "text", "input_ids", "prompt_ids"})
    if (value_of(record, answer) != nullptr) return false;
  for (const char* turns : {"messages", "conversations"})
    if (const Json* list = value_of(record, turns)) return ends_with_question(*list);
  if (value_of(record, "prompt") != nullptr || value_of(record, "instruction") != nullptr)
    return true;
  return likely_fields(record, false).empty() && !text_column(record, kQuestionsAlone).empty();
}

bool has_question(const Json& record) {
  if (is_preference(record) || has_reward(record) || has_retrieval(record)) return false;
  for (const char* question : {"messages", "conversations", "prompt", "instruction"})
    if (value_of(record, question) != nullptr) return true;
  return value_of(record, "text") == nullptr && !text_column(record, kQuestions).empty();
}

Json likely_fields(const Json& record, bool of_prompts) {
  if (is_preference(record)) return fields_of_preference(record);
  if (is_read_as_answer(record) && !of_prompts) return fields_beside_answer(record);
  const std::string question = text_column(record, kQuestions),
                    answer = text_column(record, kAnswers);
  if (!of_prompts) {
    const bool is_pair = !question.empty() && !answer.empty();
    if (!is_pair) return Json::object();
    Json fields = fields_of({{"instruction", question}, {"output", answer}});
    fields.update(fields_beside_question(record));
    return fields;
  }
  if (is_read_as_answer(record) && value_of(record, "instruction") == nullptr)
    return Json::object();
  for (const char* turns : {"messages", "conversations"})
    if (value_of(record, turns) != nullptr) return Json::object();
  for (const char* read : {"instruction", "prompt"}) {
    const Json* text = value_of(record, read);
    if (text == nullptr) continue;
    if (!text->is_string() || !has_beside_question(record)) return Json::object();
    return fields_of_question(record, read);
  }
  if (question.empty()) return Json::object();
  if (has_beside_question(record)) return fields_of_question(record, question);
  return fields_of({{"prompt", question}});
}

Json likely_fields_of_label(const Json& record) {
  for (const char* read : {"label", "kto_tag", "labels"})
    if (value_of(record, read) != nullptr) return Json::object();
  if (is_preference(record) || has_reward(record)) return Json::object();
  const bool has_answer = is_read_as_answer(record)
                              ? value_of(record, "text") == nullptr
                              : !likely_fields(record, /*of_prompts=*/false).empty();
  if (!has_answer) return Json::object();
  for (const std::string_view name : kJudgements)
    for (const auto& [key, value] : record.items())
      if (ascii_lower(key) == name && holds_judgement(value)) return {{"label", key}};
  return Json::object();
}

Json likely_fields_of_texts(const Json& record) {
  if (has_retrieval(record)) return Json::object();
  const std::string question = text_column(record, kQuestions),
                    answer = text_column(record, kAnswers);
  if (question.empty() || answer.empty()) return Json::object();
  return fields_of({{"anchor", question}, {"positive", answer}});
}

Json mapped_record(const Json& record, const Json& fields, const std::string& where) {
  return FieldMap(fields, config::RecordFormat::kAuto).apply(record, where).record;
}

void require_fit(const Json& record, const Json& fields, config::Objective objective,
                 bool of_prompts, const std::string& where) {
  const Json mapped = mapped_record(record, fields, where);
  if (of_prompts)
    detect_prompt_format(mapped, where);
  else
    detect_format(mapped, where, objective);
}

std::string likely_reference(const Json& record, config::Reward reward) {
  for (const char* key :
       {"answer", "solution", "reference", "target", "ground_truth", "expected"}) {
    const Json* value = value_of(record, key);
    if (value == nullptr || value->is_object()) continue;
    if (reward != config::Reward::kNumber || holds_number(*value)) return key;
  }
  return {};
}

std::string likely_reward(const Json& record) {
  using config::Reward;
  const std::string key = likely_reference(record, Reward::kExactMatch);
  if (key.empty()) return {};
  const bool is_number = holds_number(*value_of(record, key.c_str()));
  const std::string_view name =
      config::reward_info(is_number ? Reward::kNumber : Reward::kExactMatch).name;
  return key == "answer" ? std::string(name) : fmt::format("{{name: {}, key: {}}}", name, key);
}

}  // namespace sftrun::data
