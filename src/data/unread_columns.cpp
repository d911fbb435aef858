#include "unread_columns.h"

#include <initializer_list>

namespace sftrun::data {
namespace {

bool holds_something(const Json& record, const char* column) {
  const auto value = record.find(column);
  return value != record.end() && !value->is_null() && !value->empty() && *value != Json("");
}

}  // namespace

std::vector<std::string> unread_columns(const Json& record, RecordFormat format,
                                        const RecordShape& shape) {
  std::vector<const char*> columns = {"images", "image", "videos", "audios"};
  const auto also = [&](std::initializer_list<const char*> more) {
    columns.insert(columns.end(), more);
  };
  if (format == RecordFormat::kText) return {};
  also({"history"});
  if (format != RecordFormat::kPreference) also({"chosen", "rejected"});
  const bool is_text = std::holds_alternative<PlainText>(shape);
  if (is_text) also({"tools", "chat_template_kwargs"});
  if (format == RecordFormat::kMessages || format == RecordFormat::kPromptCompletion ||
      format == RecordFormat::kPreference)
    also({"system"});
  if (!is_text) also({"functions"});
  std::vector<std::string> found;
  for (const char* column : columns) {
    if (holds_something(record, column)) found.emplace_back(column);
  }
  // KTO's label says whether the completion is a good one.
  const bool is_judged = format == RecordFormat::kPromptCompletion && record.contains("label") &&
                         record["label"].is_boolean();
  if (is_judged) found.emplace_back("label");
  return found;
}

std::string advice_on_column(const std::string& column) {
  if (column == "history") return "earlier turns are read from \"messages\"";
  if (column == "system") return "write it as a message of the role system";
  if (column == "functions") return "rename it to \"tools\"";
  if (column == "tools" || column == "chat_template_kwargs")
    return "it is read only from conversations: \"messages\"";
  if (column == "label") return "remove the records whose label is false";
  if (column == "chosen" || column == "rejected") return "train.objective: dpo trains on them";
  return "sftrun trains on text";
}

}  // namespace sftrun::data
