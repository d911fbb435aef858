#include "sftrun/data/input_records.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

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

}  // namespace

std::vector<InputRecord> read_input_records(const std::string& input, int num_threads) {
  SourceFile file;
  const std::unique_ptr<RecordReader> reader = open_input(input, file);
  file.is_table = reader->is_table();
  std::vector<InputRecord> records;
  while (const std::unique_ptr<RecordBlock> block = reader->next()) {
    const size_t first = records.size();
    records.resize(first + block->size());
    parallel_for(static_cast<int64_t>(block->size()), num_threads, [&](int64_t i) {
      const auto index = static_cast<size_t>(i);
      InputRecord& read = records[first + index];
      read.where = file.where(block->number(index));
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

namespace {

/// Alternatives of a fix, each with the separator before it.
std::vector<std::pair<std::string_view, std::string_view>> alternatives_of(std::string_view fix) {
  constexpr std::array<std::string_view, 3> kSeparators = {"; or ", "; ", ", or "};
  std::vector<std::pair<std::string_view, std::string_view>> found;
  std::string_view separator;
  while (true) {
    size_t end = std::string_view::npos;
    std::string_view next;
    for (const std::string_view candidate : kSeparators) {
      const size_t at = fix.find(candidate);
      if (at < end) end = at, next = candidate;
    }
    found.emplace_back(separator, fix.substr(0, end));
    if (end == std::string_view::npos) return found;
    fix.remove_prefix(end + next.size());
    separator = next;
  }
}

bool names_setting(std::string_view text) {
  constexpr std::array<std::string_view, 8> kSettings = {
      "data.fields",     "data.format",         "data.train",        "data.bad_records",
      "train.objective", "model.chat_template", "model.max_seq_len", "data.too_long"};
  return std::any_of(kSettings.begin(), kSettings.end(), [&](std::string_view setting) {
    return text.find(setting) != std::string_view::npos;
  });
}

}  // namespace

void rethrow_without_settings(const DataError& error) {
  if (!names_setting(error.fix())) throw;  // with its type
  std::string fix;
  for (const auto& [separator, text] : alternatives_of(error.fix())) {
    if (names_setting(text)) continue;
    if (!fix.empty()) fix += separator;
    fix += text;
  }
  if (fix.empty()) {
    fix =
        "write \"messages\", \"conversations\", \"prompt\" and \"completion\", \"instruction\" and "
        "\"output\", or \"text\": this command has no data.fields";
  }
  throw DataError(error.message(), error.where(), fix);
}

void write_records(const std::string& output, std::string_view lines,
                   const std::function<int()>& stop_code) {
  if (output != "-") return write_file_atomically(output, lines);
  write_standard_output(lines, stop_code);
}

}  // namespace sftrun::data
