#include "sftrun/data/input_records.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include "media_path.h"
#include "record_media.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/standard_streams.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/record_reader.h"
#include "source_files.h"
#include "tally.h"
#include "text_cells.h"
#include "unread_columns.h"

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

/// Brings the files of a record to a form that can be read from another folder.
class PortableMedia {
 public:
  /// @param folder of the record's file   @param moves whether the record is written to another folder
  PortableMedia(std::filesystem::path folder, bool moves)
      : folder_(std::move(folder)), moves_(moves) {}

  /// @return whether something was changed
  bool apply(Json& record) {
    encode_bytes(record);
    for (const char* key : {"images", "image", "videos", "video", "features"})
      if (const auto column = record.find(key); column != record.end()) visit_media(*column);
    for (auto& [key, value] : record.items()) visit_turns(value);
    return has_changed_;
  }

 private:
  /// Bytes anywhere, which JSON does not have.
  void encode_bytes(Json& value) {
    if (!value.is_structured()) return;
    for (auto& [key, inner] : value.items()) {
      if (!is_bytes(inner)) {
        encode_bytes(inner);
        continue;
      }
      Json encoded = encode_base64(bytes_of(inner));
      const bool is_known = value.is_object() && (key == "bytes" || key == "base64");
      inner = is_known ? std::move(encoded) : Json{{"bytes", std::move(encoded)}};
      has_changed_ = true;
    }
  }

  /// Parts of turns, at every depth.
  void visit_turns(Json& value) {
    if (!value.is_structured()) return;
    if (is_visual_part(value) || is_features_part(value)) {
      for (const char* key : {"image", "image_url", "path", "url", "bytes", "video", "frames"})
        if (const auto held = value.find(key); held != value.end()) visit_held(key, *held);
      return;
    }
    for (Json& inner : value) visit_turns(inner);
  }

  /// An image, or what has some: a list of frames, an object with bytes or a path, features by their projectors.
  void visit_media(Json& value) {
    if (value.is_string()) {
      visit_text(value);
    } else if (value.is_array()) {
      for (Json& inner : value) visit_media(inner);
    } else if (value.is_object()) {
      for (auto& [key, inner] : value.items()) visit_held(key, inner);
    }
  }

  void visit_held(std::string_view key, Json& value) {
    const bool is_encoded = key == "bytes" || key == "base64";
    if (!is_encoded) return visit_media(value);
    if (!value.is_string() || !is_webp_file(value.get_ref<const std::string&>())) return;
    value = encode_base64(value.get_ref<const std::string&>());
    has_changed_ = true;
  }

  /// A path, or the bytes of a file of a table that are valid UTF-8.
  void visit_text(Json& value) {
    const auto& text = value.get_ref<const std::string&>();
    if (is_webp_file(text)) {
      value = {{"bytes", encode_base64(text)}};
      has_changed_ = true;
      return;
    }
    if (!moves_ || text.starts_with("data:")) return;
    const std::filesystem::path file = media_path(text, folder_);
    if (std::filesystem::path(text).is_absolute() || !leads_to_file(file)) return;
    value = absolute_path(file).lexically_normal().string();
    has_changed_ = true;
  }

  std::filesystem::path folder_;
  bool moves_ = false, has_changed_ = false;
};

bool holds_bytes(const Json& value) {
  if (is_bytes(value)) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), holds_bytes);
}

/// Of files, without links. Standard input and output are taken for files of the current directory.
std::filesystem::path folder_of_file(const std::string& file) {
  const std::filesystem::path folder =
      file == "-" ? std::filesystem::path() : std::filesystem::path(file).parent_path();
  std::error_code code;
  const auto canonical = std::filesystem::canonical(folder.empty() ? "." : folder, code);
  return code ? absolute_path(folder) : canonical;
}

}  // namespace

std::string output_line(const InputRecord& input, const Json& additions,
                        const std::string& output) {
  const bool moves = folder_of_file(output) != folder_of_file((input.folder / "x").string());
  // Numbers stay as the line has them; it has no bytes.
  Json record = holds_bytes(input.record) ? input.record : parse_exact_json(input.line);
  if (!PortableMedia(input.folder, moves).apply(record))
    return extend_json_line(input.line, input.record, additions);
  for (const auto& [key, value] : additions.items()) record[key] = value;
  return to_json_text(record);
}

bool have_images(const std::vector<InputRecord>& records) {
  return std::any_of(records.begin(), records.end(), [](const InputRecord& read) {
    return has_image_columns(read.record) || holds_image_part(read.record);
  });
}

std::string unread_images_warning(const std::vector<InputRecord>& records) {
  if (have_images(records)) return {};
  Tally found;
  std::string column;
  for (const InputRecord& read : records) {
    const std::vector<std::string> fields = unread_media(read.record, {.images = true});
    if (fields.empty()) continue;
    if (column.empty()) column = fields.front().substr(fields.front().find(": ") + 2);
    found.add(1, read.where);
  }
  if (column.empty()) return {};
  return fmt::format(
      "records have \"{}\", which seems to hold images and is not read ({}): {}; rename it to "
      "\"images\"",
      excerpt(column), found.count(), found.places());
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
