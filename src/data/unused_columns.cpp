#include <algorithm>
#include <string_view>

#include "nulls.h"
#include "record.h"
#include "sftrun/config/record_formats.h"
#include "sftrun/core/error.h"
#include "sftrun/data/likely_objective.h"
#include "sftrun/data/sequence.h"

namespace sftrun::data {
namespace {

/// What a pair's prompt may be in (pair_layouts.h).
constexpr NameList kPairPrompts = {"messages", "conversations", "instruction", "input", "system"};
constexpr NameList kOfEveryFormat = {"image", "video", "tools", "chat_template_kwargs"};

bool is_read_for(const config::ObjectiveInfo& objective, std::string_view column) {
  if (objective.reads_judgements())
    return column == config::kLabelColumn || column == config::kLabelAlias;
  if (objective.reads_classes())
    return column == config::kLabelColumn || column == config::kLabelsColumn || column == "prompt";
  if (objective.reads_retrieval())
    return column == "query" || column == "pos" || column == "neg" ||
           column.starts_with("negative_");
  if (objective.reads_pairs()) return column == config::kMarginColumn && objective.has_scores();
  return objective.reads_samples() &&
         config::format_info(RecordFormat::kSampled).optional.contains(column);
}

bool is_read_as(const config::RecordFormatInfo& format, const Json& record,
                std::string_view column) {
  if (format.columns.contains(column) || format.optional.contains(column) ||
      format.turns.contains(column))
    return true;
  return format.is_pair && value_of(record, "prompt") == nullptr && kPairPrompts.contains(column);
}

}  // namespace

std::vector<std::string> unused_columns(const Json& record, config::Objective objective) {
  const config::ObjectiveInfo& info = config::objective_info(objective);
  const config::RecordFormatInfo* format = nullptr;
  try {
    format = &config::format_info(detect_format(record, {}, objective).format);
  } catch (const DataError&) {  // the checks of the configuration say what it lacks
    return {};
  }
  std::vector<std::string> unused;
  for (const auto& [column, value] : record.items()) {
    const bool is_used = is_read_as(*format, record, column) || is_read_for(info, column) ||
                         config::kMediaColumns.contains(column) || kOfEveryFormat.contains(column);
    if (!is_used && !value.is_null()) unused.push_back(column);
  }
  return unused;
}

}  // namespace sftrun::data
