#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/file.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/sequence.h"

namespace sftrun::data {

/// A data file, mapped and split into lines. Immutable after construction.
class RecordFile {
 public:
  /// @throws DataError if it cannot be read, or holds no records
  explicit RecordFile(const std::filesystem::path& path);

  size_t size() const { return lines_.size(); }
  int64_t line_number(size_t index) const { return lines_[index].number; }
  std::string where(size_t index) const;  ///< "file:line"
  Json parse(size_t index) const;         ///< @throws DataError
  std::string_view content() const;
  /// As configured, or detected on the first record.
  DetectedFormat format(config::DataFormat configured) const;

 private:
  MappedFile file_;
  std::vector<JsonLine> lines_;
};

}  // namespace sftrun::data
