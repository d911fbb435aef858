#include "sftrun/config/record_formats.h"

#include <algorithm>
#include <initializer_list>

namespace sftrun::config {
namespace {

/// The names of all rows, each once.
std::vector<std::string> names_in(std::initializer_list<NameList RecordFormatInfo::*> lists) {
  std::vector<std::string> names;
  for (const auto list : lists)
    for (const RecordFormatInfo& info : kRecordFormats)
      for (const std::string_view name : info.*list)
        if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  return names;
}

}  // namespace

std::vector<std::string> record_columns() {
  std::vector<std::string> names =
      names_in({&RecordFormatInfo::columns, &RecordFormatInfo::turns, &RecordFormatInfo::optional});
  names.insert(names.end(), kMediaColumns.begin(), kMediaColumns.end());
  for (const char* column : {kLabelColumn, kLabelsColumn, kMarginColumn})
    names.emplace_back(column);
  return names;
}

std::vector<std::string> optional_columns() {
  std::vector<std::string> names;
  for (const RecordFormatInfo& info : kRecordFormats)
    if (!info.is_sampled) names.insert(names.end(), info.optional.begin(), info.optional.end());
  names.insert(names.end(), kMediaColumns.begin(), kMediaColumns.end());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::vector<std::string> columns_of_turns() {
  return names_in({&RecordFormatInfo::turns});
}

}  // namespace sftrun::config
