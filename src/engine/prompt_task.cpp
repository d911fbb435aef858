#include "prompt_task.h"

#include "sftrun/data/json_lines.h"

namespace sftrun::engine {

data::PromptTokens PromptTask::prompt_of(size_t answer) const {
  const int64_t index = prompts[group_of(answer)];
  const data::ExampleView example = data.examples()[index];
  data::PromptTokens prompt;
  for (int64_t i = 0; i < example.size(); ++i) prompt.ids.push_back(example.token(i));
  if (example.stored->num_media > 0) prompt.media = data.examples().media_of(index);
  return prompt;
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
