#include "prompt_task.h"

#include "sftrun/data/json_lines.h"
#include "sftrun/data/last_answer.h"

namespace sftrun::engine {

data::PromptTokens PromptTask::prompt_of(size_t answer) const {
  const int64_t index = prompts[group_of(answer)];
  return data::prompt_until(data.examples(), index, data.examples()[index].size());
}

const nlohmann::ordered_json& PromptTask::record_of(size_t answer) {
  const size_t group = group_of(answer);
  const auto found = parsed.find(group);
  if (found != parsed.end()) return found->second;
  return parsed
      .emplace(group, data::parse_json_text(data.examples().record_text_of(prompts[group])))
      .first->second;
}

}  // namespace sftrun::engine
