#include "content_parts.h"

#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

Json probe(const Json& content) {
  return Json::array({{{"role", "user"}, {"content", content}}});
}

}  // namespace

void check_parts(const Json& parts, const std::string& name, const std::string& where) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
    if (typed && part["type"] != "text") {
      throw DataError(fmt::format("{}[{}] has the type {}", name, i, part["type"].dump()), where,
                      "sftrun reads only text: remove this part, or the record");
    }
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) {
      throw DataError(fmt::format("{}[{}] is not a text part", name, i), where,
                      R"(write {"type": "text", "text": "…"})");
    }
  }
}

bool reads_parts(const TextModel& model) {
  try {
    const Json parts = Json::array({{{"type", "text"}, {"text", "sftrun"}}});
    const std::string text = model.chat_template->render(probe(parts), model.render_defaults).text;
    const auto holds = [&](const char* what) { return text.find(what) != std::string::npos; };
    return holds("sftrun") && !holds(": 'sftrun'") && !holds(R"(: "sftrun")");
  } catch (const DataError&) {  // a template for strings concatenates them
    return false;
  }
}

void join_parts(Json& messages) {
  for (Json& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    std::vector<std::string> texts;
    for (const Json& part : *content) texts.push_back(part["text"].get<std::string>());
    *content = join(texts, "\n");
  }
}

}  // namespace sftrun::data
