#include "tool_calls.h"

#include <algorithm>

#include "content_parts.h"
#include "nulls.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/json_lines.h"

namespace sftrun::data {
namespace {

constexpr const char* kProbe = R"({"sftrun": 1})";

/// The template's text of a question and this answer; empty: it fails.
std::string rendered_answer(const TextModel& model, const Json& answer) {
  const Json messages = {{{"role", "user"}, {"content", "q"}}, answer};
  for (const Json& form : {messages, strings_as_parts(messages)}) {  // some read only parts
    const auto rendered = model.chat_template->render_if_accepted(form, model.render_defaults);
    if (rendered) return rendered->text;
  }
  return {};
}

bool holds(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

/// Some templates write the id alone, which has the name in it (Kimi K2: "functions.add:0").
bool writes_call(const std::string& text) {
  return holds(text, kProbedName) || (holds(text, kProbedId) && holds(text, "sftrun"));
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

bool is_blank(const Json& arguments) {
  return arguments.is_null() ||
         (arguments.is_string() && trim(arguments.get_ref<const std::string&>()).empty());
}

std::string without_spaces(std::string text) {
  std::erase_if(text, [](char byte) { return byte == ' ' || byte == '\n' || byte == '\t'; });
  return text;
}

/// Both forms of the arguments are rendered. Where they give the same text, but for spaces, the
/// template knows both. A template for objects need not fail for a string: Gemma 4's encloses it in
/// the braces of an object.
ArgumentForm argument_form(const std::string& of_object, const std::string& of_string) {
  const bool writes_string = holds(of_string, kProbe);
  if (writes_string && without_spaces(of_object) == without_spaces(of_string))
    return ArgumentForm::kAny;
  const bool writes_object = holds(of_object, "sftrun") && !holds(of_object, "{'sftrun'");
  return writes_string && !writes_object ? ArgumentForm::kString : ArgumentForm::kObject;
}

/// As Python's json.dumps writes it, which is how the calls of models are recorded.
std::string dumped(const Json& arguments) {
  static const templates::ChatTemplate writer("{{ messages[0].arguments | tojson }}");
  return writer.render(Json::array({{{"arguments", arguments}}}), {}).text;
}

void set_arguments(Json& function, ArgumentForm form) {
  const auto arguments = function.find("arguments");
  if (arguments == function.end() || is_blank(*arguments)) {
    function["arguments"] = form == ArgumentForm::kString ? Json("{}") : Json::object();
  } else if (form == ArgumentForm::kObject && arguments->is_string()) {
    *arguments = object_in(*arguments);
  } else if (form == ArgumentForm::kString && arguments->is_object()) {
    *arguments = dumped(*arguments);
  }
}

void check_function(const Json& function, const std::string& name, const std::string& where) {
  if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
    throw DataError(fmt::format("{} is not a call of a function: it needs a \"name\"", name), where,
                    R"(write {"name": "…", "arguments": {…}})");
  }
  const Json arguments = function.value("arguments", Json());
  if (is_blank(arguments) || arguments.is_object()) return;
  if (!arguments.is_string()) {
    throw DataError(fmt::format("{}.arguments must be an object, not {}", name,
                                arguments.is_array() ? "a list" : arguments.type_name()),
                    where, R"(write "arguments": {"name of the argument": value})");
  }
  if (object_in(arguments).is_object()) return;
  throw DataError(
      fmt::format("{}.arguments is a string that is not a JSON object: {}", name,
                  excerpt(arguments.get_ref<const std::string&>())),
      where, R"(write "arguments": {"name of the argument": value}, or that object as a string)");
}

}  // namespace

Json calling_answer(Json arguments) {
  const Json call = {{"type", "function"},
                     {"id", kProbedId},
                     {"function", {{"name", kProbedName}, {"arguments", std::move(arguments)}}}};
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}};
}

CallSupport call_support(const TextModel& model) {
  const Json answer = calling_answer({{"sftrun", 1}});
  const std::string of_string = rendered_answer(model, calling_answer(kProbe)),
                    of_object = rendered_answer(model, answer);
  CallSupport support{.writes = writes_call(of_object) || writes_call(of_string),
                      .arguments = argument_form(of_object, of_string)};
  const std::string& written = support.arguments == ArgumentForm::kString ? of_string : of_object;
  Json without = calling_answer(support.arguments == ArgumentForm::kString ? Json(kProbe)
                                                                           : Json({{"sftrun", 1}}));
  Json flat = without;
  flat["tool_calls"][0] = Json(flat["tool_calls"][0]["function"]);
  support.takes_flat = writes_call(rendered_answer(model, flat));
  without.erase("content");
  const std::string of_missing = rendered_answer(model, without);
  support.takes_missing_content =
      !of_missing.empty() && (!holds(of_missing, "None") || holds(written, "None"));
  support.knows_function_call = holds(model.chat_template->source(), "function_call");
  return support;
}

void check_calls(const Json& message, const std::string& name, const std::string& where) {
  if (const auto call = message.find("function_call"); call != message.end() && !call->is_null())
    check_function(*call, name + ".function_call", where);
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) {
    throw DataError(
        fmt::format("{}.tool_calls must be a list of calls, not {}", name, calls->type_name()),
        where, R"(write [{"type": "function", "function": {…}}])");
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    const Json& call = (*calls)[i];
    const bool is_nested =
        call.is_object() && call.contains("function") && !call["function"].is_null();
    check_function(is_nested ? call["function"] : call,
                   fmt::format("{}.tool_calls[{}]{}", name, i, is_nested ? ".function" : ""),
                   where);
  }
}

void set_calls(Json& message, const CallSupport& support) {
  if (!support.writes) return;
  if (message.contains("function_call") && !message.contains("tool_calls") &&
      !support.knows_function_call) {
    message["tool_calls"] =
        Json::array({{{"type", "function"}, {"function", message["function_call"]}}});
    message.erase("function_call");
  }
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    drop_nulls(call);
    if (!call.contains("function") && !support.takes_flat) {
      Json nested = {{"type", "function"}, {"function", Json::object()}};
      if (call.contains("id")) nested["id"] = call["id"];
      for (const char* key : {"name", "arguments"})
        if (call.contains(key)) nested["function"][key] = call[key];
      call = std::move(nested);
    }
    set_arguments(call.contains("function") ? call["function"] : call, support.arguments);
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
