#pragma once

#include <string>
#include <vector>

#include "sftrun/config/rewards.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/reward/rewards.h"

namespace sftrun::test {

using RewardRecord = nlohmann::ordered_json;

/// Answers that stand in records under "generated".
struct JudgedAnswers {
  explicit JudgedAnswers(std::vector<RewardRecord> of) : records(std::move(of)) {
    for (const RewardRecord& record : records) {
      reward::Answer answer{.text = record.at("generated").get_ref<const std::string&>(),
                            .record = &record,
                            .where = "answers.jsonl:" + std::to_string(answers.size() + 1)};
      answer.prompt = reward::prompt_of(record);
      answers.push_back(std::move(answer));
    }
  }
  JudgedAnswers(const JudgedAnswers&) = delete;

  std::vector<RewardRecord> records;
  std::vector<reward::Answer> answers;
};

inline std::vector<RewardRecord> records_of(const std::vector<std::string>& texts) {
  std::vector<RewardRecord> records;
  for (const std::string& text : texts) records.push_back({{"prompt", "p"}, {"generated", text}});
  return records;
}

/// @param yaml as a configuration has it
inline config::RewardSpecs specs_of(const std::string& yaml) {
  config::Problems problems;
  config::RewardSpecs specs = config::parse_rewards(
      config::parse_yaml(yaml, "rewards.yaml", problems), "rewards.yaml", problems);
  config::throw_if_any(problems);
  return specs;
}

}  // namespace sftrun::test
