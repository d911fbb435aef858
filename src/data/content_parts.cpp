#include "content_parts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "tool_calls.h"

namespace sftrun::data {
namespace {

/// Keys beside a part's text that are not for the model.
constexpr std::array<std::string_view, 6> kNotes = {"cache_control", "annotations", "citations",
                                                    "logprobs",      "id",          "index"};

bool is_nothing(const Json& value) {
  return value.is_null() || (value.is_structured() && value.empty()) || value == Json("");
}

void check_part(const Json& part, const std::string& name, const std::string& where) {
  constexpr const char* kFix = R"(write {"type": "text", "text": "…"})";
  const Json type = part.is_object() ? part.value("type", Json()) : Json();
  if (type.is_string() && type != "text") {
    throw DataError(fmt::format("{} has the type {}", name, excerpt(type.dump())), where,
                    "sftrun reads only text: remove this part, or the record");
  }
  const bool is_text = part.is_object() && (type.is_null() || type.is_string()) &&
                       part.contains("text") && part["text"].is_string();
  if (!is_text) throw DataError(fmt::format("{} is not a text part", name), where, kFix);
  for (const auto& [key, value] : part.items()) {
    if (key == "type" || key == "text" || is_nothing(value)) continue;
    if (std::find(kNotes.begin(), kNotes.end(), key) != kNotes.end()) continue;
    throw DataError(
        fmt::format("{} has \"{}\" beside its text, which is not read", name, excerpt(key)), where,
        "sftrun reads only text: remove the key, or the record");
  }
}

/// A conversation whose message of `role` has the content.
Json conversation_about(const std::string& role, const Json& content) {
  const Json question = {{"role", "user"}, {"content", "q"}};
  Json message = {{"role", role}, {"content", content}};
  if (role == "user") return Json::array({message});
  if (role == "system" || role == "developer") return Json::array({message, question});
  if (role != "tool") return Json::array({question, message});
  message["name"] = kProbedName;
  message["tool_call_id"] = kProbedId;
  return Json::array({question, calling_answer(Json::object()), message});
}

bool reads_parts(const TextModel& model, const std::string& role) {
  const Json parts = {{{"type", "text"}, {"text", "sftrunq"}},
                      {{"type", "text"}, {"text", "sftrunz"}}};
  try {
    const std::string text =
        model.chat_template->render(conversation_about(role, parts), model.render_defaults).text;
    const auto holds = [&](const char* what) { return text.find(what) != std::string::npos; };
    const bool prints_list = holds("'text'") || holds(R"("text")");
    return holds("sftrunq") && holds("sftrunz") && !prints_list;
  } catch (const DataError&) {  // a template for strings concatenates them
    return false;
  }
}

}  // namespace

void check_parts(const Json& parts, const std::string& name, const std::string& where) {
  for (size_t i = 0; i < parts.size(); ++i)
    check_part(parts[i], fmt::format("{}[{}]", name, i), where);
}

std::set<std::string> roles_with_parts(const TextModel& model) {
  std::set<std::string> roles;
  for (const char* role : {"system", "developer", "user", "assistant", "tool"})
    if (reads_parts(model, role)) roles.insert(role);
  return roles;
}

void set_parts(Json& message, const std::set<std::string>& with_parts) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return;
  const bool joins =
      content->empty() || !with_parts.contains(message["role"].get_ref<const std::string&>());
  std::vector<std::string> texts;
  for (const std::string* text : texts_of(message)) texts.push_back(*text);
  if (joins) {
    *content = join(texts, "\n");
    return;
  }
  *content = Json::array();
  for (const std::string& text : texts) content->push_back({{"type", "text"}, {"text", text}});
}

std::vector<const std::string*> texts_of(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end()) return {};
  if (content->is_string()) return {&content->get_ref<const std::string&>()};
  std::vector<const std::string*> texts;
  if (!content->is_array()) return texts;
  for (const Json& part : *content) texts.push_back(&part["text"].get_ref<const std::string&>());
  return texts;
}

}  // namespace sftrun::data
