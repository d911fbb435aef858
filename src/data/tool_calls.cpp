#include "tool_calls.h"

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/data/json_lines.h"

namespace sftrun::data {
namespace {

constexpr const char* kProbe = R"({"sftrun": 1})";

Json call_of(const std::string& name, Json arguments) {
  return {{"type", "function"},
          {"id", "call00000"},  // Mistral's templates require nine characters
          {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

/// The template's text of a question and this answer; empty: it fails.
std::string rendered_answer(const TextModel& model, const Json& answer) {
  const Json messages = {{{"role", "user"}, {"content", "q"}}, answer};
  try {
    return model.chat_template->render(messages, model.render_defaults).text;
  } catch (const DataError&) {
    return {};
  }
}

/// An answer that calls `probed`.
Json calling_answer(Json arguments) {
  return {{"role", "assistant"},
          {"content", ""},
          {"tool_calls", {call_of("probed", std::move(arguments))}}};
}

bool holds(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

bool is_call(const Json& value) {
  return value.is_object() && value.contains("name") && value["name"].is_string() &&
         value.contains("arguments");
}

/// The JSON object in a string; null: none.
Json object_in(const Json& text) {
  if (!text.is_string()) return nullptr;
  Json parsed = parse_json_text(text.get_ref<const std::string&>());
  return parsed.is_object() ? parsed : Json();
}

}  // namespace

CallSupport call_support(const TextModel& model) {
  const Json answer = calling_answer({{"sftrun", 1}});
  const std::string of_string = rendered_answer(model, calling_answer(kProbe)),
                    of_object = rendered_answer(model, answer);
  Json without = answer;
  without.erase("content");
  const std::string of_missing = rendered_answer(model, without);
  return {.writes = holds(of_object, "probed") || holds(of_string, "probed"),
          .takes_strings = holds(of_string, kProbe),
          .takes_missing_content =
              !of_missing.empty() && (!holds(of_missing, "None") || holds(of_object, "None"))};
}

void parse_arguments(Json& messages) {
  for (Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      if (!call.is_object()) continue;
      Json& function = call.contains("function") ? call["function"] : call;
      if (!function.is_object() || !function.contains("arguments")) continue;
      if (Json object = object_in(function["arguments"]); !object.is_null())
        function["arguments"] = std::move(object);
    }
  }
}

std::optional<Json> calls_of_text(const std::string& text) {
  const Json parsed = parse_json_text(text);
  const Json list = parsed.is_object() ? Json::array({parsed}) : parsed;
  if (!list.is_array() || list.empty() || !std::all_of(list.begin(), list.end(), is_call))
    return std::nullopt;
  Json calls = Json::array();
  for (const Json& call : list) {
    calls.push_back({{"type", "function"},
                     {"function", {{"name", call["name"]}, {"arguments", call["arguments"]}}}});
  }
  return calls;
}

}  // namespace sftrun::data
