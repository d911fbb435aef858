#include "sftrun/data/record_error.h"

#include "sftrun/config/record_formats.h"
#include "sftrun/core/strings.h"

namespace sftrun::data {

std::vector<std::string> keys_of_formats() {
  std::vector<std::string> keys;
  for (const config::RecordFormatInfo& info : config::kRecordFormats) {
    std::vector<std::string> columns;
    for (const std::string_view column : info.columns)
      columns.push_back(fmt::format("\"{}\"", column));
    if (!info.is_pair && !info.is_sampled && !info.is_retrieval)
      keys.push_back(join(columns, " and "));
  }
  return keys;
}

std::string advice_to_write_keys() {
  return fmt::format("write {}: this command has no data.fields",
                     joined(keys_of_formats(), ", or "));
}

}  // namespace sftrun::data
