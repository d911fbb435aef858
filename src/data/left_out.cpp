#include "left_out.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

using text::LabelledConversation;
using text::Origin;

bool is_given(const Json& message, const char* key) {
  const auto value = message.find(key);
  return value != message.end() && !value->is_null() && !value->empty() && *value != Json("");
}

bool shows(const text::Rendered& rendered, int32_t message, const std::set<std::string>& fields) {
  return std::any_of(rendered.origins.begin(), rendered.origins.end(),
                     [&](const text::OriginSpan& span) {
                       return span.origin.kind == Origin::Kind::kMessage &&
                              span.origin.message == message && fields.contains(span.origin.field);
                     });
}

/// Reasoning at the beginning of an answer's content; empty: none.
std::string thought_in(const Json& answer) {
  const auto content = answer.find("content");
  if (content == answer.end() || !content->is_string()) return {};
  const std::string& text = content->get_ref<const std::string&>();
  const size_t end = text.find("</think>");
  if (end == std::string::npos) return {};
  std::string_view thought = trim(std::string_view(text).substr(0, end));
  if (thought.starts_with("<think>")) thought.remove_prefix(7);
  return std::string(trim(thought));
}

/// Tools reach the text through `tojson` or field by field; their names stand there either way.
bool shows_a_tool(const std::string& text, const Json& tools) {
  return std::any_of(tools.begin(), tools.end(), [&](const Json& tool) {
    const Json& function = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string())
      return true;  // of an unknown kind
    return text.find(function["name"].get<std::string>()) != std::string::npos;
  });
}

bool makes_calls(const Json& message) {
  return is_given(message, "tool_calls") || is_given(message, "function_call");
}

}  // namespace

LeftOut find_left_out(const LabelledConversation& conversation, const Json& messages,
                      const Json& tools) {
  const std::set<std::string> reasoning = {"reasoning_content", "thinking", "reasoning"};
  LeftOut left_out;
  std::set<int32_t> trained;
  for (const LabelledConversation::Run& run : conversation.runs) trained.insert(run.message);
  for (const int32_t message : trained) {
    if (message < 0 || static_cast<size_t>(message) >= messages.size()) continue;
    const Json& answer = messages[static_cast<size_t>(message)];
    if (makes_calls(answer) &&
        !shows(conversation.rendered, message, {"tool_calls", "function_call"}))
      ++left_out.tool_calls;
    const bool is_last = message == *trained.rbegin();
    const bool reasons = std::any_of(reasoning.begin(), reasoning.end(), [&](const auto& key) {
      return is_given(answer, key.c_str());
    });
    const std::string thought = thought_in(answer);
    const bool drops_thought =
        !thought.empty() && conversation.rendered.text.find(thought) == std::string::npos;
    if ((reasons && !shows(conversation.rendered, message, reasoning)) || drops_thought)
      ++(is_last ? left_out.reasoning : left_out.earlier_reasoning);
  }
  if (tools.is_array() && !tools.empty() && !shows_a_tool(conversation.rendered.text, tools))
    left_out.tools = 1;
  return left_out;
}

void drop_empty_answers(LabelledConversation& conversation, const Json& messages) {
  std::set<int32_t> shown;
  for (const text::OriginSpan& span : conversation.rendered.origins) {
    const Origin& origin = span.origin;
    if (origin.kind == Origin::Kind::kMessage && origin.field != "role")
      shown.insert(origin.message);
  }
  std::erase_if(conversation.runs, [&](const LabelledConversation::Run& run) {
    return run.message >= 0 && !shown.contains(run.message) &&
           makes_calls(messages[static_cast<size_t>(run.message)]);
  });
}

int64_t count_empty_answers(const LabelledConversation& conversation, const Json& messages) {
  std::set<int32_t> trained;
  for (const LabelledConversation::Run& run : conversation.runs) trained.insert(run.message);
  return std::count_if(trained.begin(), trained.end(), [&](int32_t message) {
    if (message < 0 || static_cast<size_t>(message) >= messages.size()) return false;
    const Json& answer = messages[static_cast<size_t>(message)];
    if (answer["role"] != "assistant" || makes_calls(answer)) return false;
    for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
      if (is_given(answer, key)) return false;
    }
    const auto content = answer.find("content");
    if (content == answer.end() || content->is_null()) return true;
    return content->is_string() && trim(content->get_ref<const std::string&>()).empty();
  });
}

int64_t count_control_tokens(const LabelledConversation& conversation,
                             const text::LabelledTokens& tokens, const text::Tokenizer& tokenizer) {
  std::set<int32_t> messages;
  const auto& origins = conversation.rendered.origins;
  size_t at = 0;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (!tokenizer.is_special(tokens.ids[i])) continue;
    while (at < origins.size() && origins[at].end <= tokens.spans[i].begin) ++at;
    if (at == origins.size()) break;
    const Origin& origin = origins[at].origin;
    const bool whole = tokens.spans[i].end <= origins[at].end;
    if (whole && origin.kind == Origin::Kind::kMessage && origin.field != "role")
      messages.insert(origin.message);
  }
  return static_cast<int64_t>(messages.size());
}

}  // namespace sftrun::data
