#include "sftrun/data/likely_objective.h"

#include <fmt/format.h>

#include "class_labels.h"
#include "nulls.h"
#include "retrieval_record.h"
#include "sampled_answer.h"
#include "sftrun/config/rewards.h"
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

}  // namespace

config::Objective likely_objective(const Json& record) {
  using enum config::Objective;
  if (is_preference(record)) return kDpo;
  if (has_reward(record)) return kGrpo;
  if (has_retrieval(record)) return kEmbed;
  if (is_judged(record)) return kKto;
  if (has_class(record)) return kClassify;
  return is_prompt_alone(record) ? kGrpo : kSft;
}

bool is_prompt_alone(const Json& record) {
  for (const char* answer : {"completion", "response", "output", "text", "input_ids", "prompt_ids"})
    if (value_of(record, answer) != nullptr) return false;
  for (const char* turns : {"messages", "conversations"})
    if (const Json* list = value_of(record, turns)) return ends_with_question(*list);
  return value_of(record, "prompt") != nullptr || value_of(record, "instruction") != nullptr;
}

std::string likely_reward(const Json& record) {
  constexpr const char* kDefault = "answer";  // of the rewards' `key`
  for (const char* key :
       {kDefault, "solution", "reference", "target", "ground_truth", "expected"}) {
    const Json* value = value_of(record, key);
    if (value == nullptr || value->is_object()) continue;
    const config::Reward reward =
        holds_number(*value) ? config::Reward::kNumber : config::Reward::kExactMatch;
    const std::string_view name = config::reward_info(reward).name;
    return key == kDefault ? std::string(name) : fmt::format("{{name: {}, key: {}}}", name, key);
  }
  return {};
}

}  // namespace sftrun::data
