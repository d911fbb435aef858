#include "record_file.h"

#include "sftrun/core/error.h"

namespace sftrun::data {

RecordFile::RecordFile(const std::filesystem::path& path) : file_(path) {
  lines_ = split_json_lines(content(), path.string());
  if (lines_.empty()) {
    throw DataError("the file holds no records", path.string(), "write one JSON object a line");
  }
}

std::string_view RecordFile::content() const {
  return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
}

std::string RecordFile::where(size_t index) const {
  return fmt::format("{}:{}", file_.path().string(), lines_[index].number);
}

Json RecordFile::parse(size_t index) const {
  return parse_json_line(lines_[index].text, where(index));
}

DetectedFormat RecordFile::format(config::DataFormat configured) const {
  constexpr const char* kConfigured = "data.format says so";
  switch (configured) {
    case config::DataFormat::kAuto:
      return detect_format(parse(0), where(0));
    case config::DataFormat::kMessages:
      return {RecordFormat::kMessages, kConfigured};
    case config::DataFormat::kShareGpt:
      return {RecordFormat::kShareGpt, kConfigured};
    case config::DataFormat::kAlpaca:
      return {RecordFormat::kAlpaca, kConfigured};
    case config::DataFormat::kPromptCompletion:
      return {RecordFormat::kPromptCompletion, kConfigured};
    case config::DataFormat::kText:
      return {RecordFormat::kText, kConfigured};
  }
  invariant_failed(__FILE__, __LINE__, "unknown data format");
}

}  // namespace sftrun::data
