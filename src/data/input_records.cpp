#include "sftrun/data/input_records.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include "record_media.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/standard_streams.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/record_reader.h"
#include "source_files.h"
#include "text_cells.h"

namespace sftrun::data {
namespace {

class TextStream final : public ByteStream {
 public:
  explicit TextStream(std::string text) : text_(std::move(text)) {}
  size_t read(char* buffer, size_t size) override {
    const size_t count = text_.copy(buffer, size, position_);
    position_ += count;
    return count;
  }
  uint64_t file_position() const override { return position_; }

 private:
  std::string text_;
  size_t position_ = 0;
};

std::unique_ptr<RecordReader> open_input(const std::string& input, SourceFile& file) {
  if (input == "-") {
    file.path = "<stdin>";
    return read_json_records(std::make_unique<TextStream>(read_standard_input()), file.path);
  }
  if (is_folder(input)) {
    throw DataError("this is a directory", input, "name one of its files");
  }
  file.path = input;
  return open_records(input);
}

/// Tables without lists store conversations as JSON strings.
void read_conversations(Json& record) {
  for (const char* key : {"messages", "conversations"}) {
    const auto it = record.find(key);
    if (it == record.end() || !it->is_string()) continue;
    Json turns = parse_json_text(it->get_ref<const std::string&>());
    if (turns.is_array()) *it = std::move(turns);
  }
}

/// Whether a part of a turn's content in here stands for an image or a video.
bool holds_image_part(const Json& value) {
  if (is_visual_part(value)) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), holds_image_part);
}

}  // namespace

bool have_images(const std::vector<InputRecord>& records) {
  return std::any_of(records.begin(), records.end(), [](const InputRecord& read) {
    return has_image_columns(read.record) || holds_image_part(read.record);
  });
}

std::vector<InputRecord> read_input_records(const std::string& input, int num_threads) {
  SourceFile file;
  const std::unique_ptr<RecordReader> reader = open_input(input, file);
  file.is_table = reader->is_table();
  const std::filesystem::path folder =
      input == "-" ? std::filesystem::path() : std::filesystem::path(input).parent_path();
  std::vector<InputRecord> records;
  while (const std::unique_ptr<RecordBlock> block = reader->next()) {
    const size_t first = records.size();
    records.resize(first + block->size());
    parallel_for(static_cast<int64_t>(block->size()), num_threads, [&](int64_t i) {
      const auto index = static_cast<size_t>(i);
      InputRecord& read = records[first + index];
      read.where = file.where(block->number(index));
      read.folder = folder;
      read.record = block->parse(index, read.where);
      const std::string_view line = block->line(index);
      read.line = line.empty() ? to_json_text(read.record) : std::string(line);
      if (reader->has_text_cells()) read_text_cells(read.record);
      read_conversations(read.record);
      round_fractions(read.record);
    });
  }
  return records;
}

std::vector<InputRecord> read_input_records(const config::DataSource& input, int num_threads) {
  if (input.path == "-") return read_input_records(input.path, num_threads);
  std::vector<InputRecord> records;
  for (const std::filesystem::path& file : input_files(input)) {
    std::vector<InputRecord> more = read_input_records(file.string(), num_threads);
    records.insert(records.end(), std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
  }
  return records;
}

std::vector<std::filesystem::path> input_files(const config::DataSource& input) {
  return source_files(input, SplitRole::kTrain);
}

void write_records(const std::string& output, std::string_view lines,
                   const std::function<int()>& stop_code) {
  if (output != "-") return write_file_atomically(output, lines, SpecialFile::kAllowed);
  write_standard_output(lines, stop_code);
}

}  // namespace sftrun::data
