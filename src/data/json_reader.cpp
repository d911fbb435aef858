#include <algorithm>
#include <vector>

#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "sftrun/data/record_reader.h"

/// JSON lines, JSON arrays and lines of plain text, block by block.
namespace sftrun::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr const char* kSpaces = " \t\r\n";

/// Whether a list ends where the text ends, brackets in strings aside.
bool is_one_list(std::string_view text) {
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) i += c == '\\' ? 1 : 0;
    if (in_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth == 0) return c == ']' && i + 1 == text.size();
  }
  return false;
}

class JsonBlock : public RecordBlock {
 public:
  struct Place {
    size_t begin = 0, end = 0;
    int64_t line = 0;
  };
  /// @param are_lines each record is a line   @param ends_file nothing follows the last one
  JsonBlock(std::string text, std::vector<Place> records, bool are_lines, bool ends_file)
      : text_(std::move(text)),
        records_(std::move(records)),
        are_lines_(are_lines),
        ends_file_(ends_file) {}

  size_t size() const override { return records_.size(); }
  int64_t number(size_t index) const override { return records_[index].line; }
  Json parse(size_t index, const std::string& where) const override {
    return parse_json_line(record(index), where, next_of(index));
  }
  std::string_view line(size_t index) const override {
    const std::string_view text =
        trim(record(index));  // elements of an array may have several lines
    return text.find('\n') == std::string_view::npos ? text : std::string_view();
  }

 protected:
  std::string_view record(size_t index) const {
    const Place& place = records_[index];
    return std::string_view(text_).substr(place.begin, place.end - place.begin);
  }

 private:
  NextLine next_of(size_t index) const {
    if (!are_lines_) return NextLine::kNoLine;
    if (index + 1 == size()) return ends_file_ ? NextLine::kNone : NextLine::kUnknown;
    const std::string_view next = record(index + 1);
    const bool is_record = next.starts_with('{') && next.ends_with('}');
    return is_record ? NextLine::kRecord : NextLine::kOther;
  }

  std::string text_;
  std::vector<Place> records_;
  bool are_lines_, ends_file_;
};

/// Each line is a text.
class TextBlock final : public JsonBlock {
 public:
  using JsonBlock::JsonBlock;
  Json parse(size_t index, const std::string& where) const override {
    if (!is_valid_utf8(record(index))) {
      throw DataError("invalid UTF-8", where,
                      "convert the file: iconv -f latin1 -t utf8 (or whatever its encoding is)");
    }
    if (record(index).find('\0') != std::string_view::npos) {
      throw DataError("a NUL byte in the text", where,
                      "the file is damaged or not text: write it again");
    }
    return {{"text", record(index)}};
  }
  std::string_view line(size_t /*index*/) const override { return {}; }
};

/// Finds records in a buffer of text: bytes are appended at its end and removed from its front.
class Splitter {
 public:
  virtual ~Splitter() = default;
  /// Scans the text that was added; `at_end`: nothing follows.
  virtual void scan(const std::string& text, bool at_end) = 0;
  /// End of the last record that was found, in bytes; 0: none.
  size_t num_complete() const { return complete_; }
  /// Number of scanned bytes after the last complete record.
  size_t num_pending(const std::string& text) const { return text.size() - complete_; }
  /// The current line.
  int64_t line() const { return line_; }
  bool has_records() const { return !records_.empty(); }
  /// Takes the records that were found; later positions count from the front of the remaining text.
  std::vector<JsonBlock::Place> take() {
    moved(complete_);
    scanned_ -= complete_;
    complete_ = 0;
    return std::exchange(records_, {});
  }

 protected:
  virtual void moved(size_t /*num_bytes*/) {}  // later positions are that much smaller

  std::vector<JsonBlock::Place> records_;
  size_t complete_ = 0, scanned_ = 0;
  int64_t line_ = 1;
};

class LineSplitter final : public Splitter {
 public:
  /// @param keeps_spaces keep white space at the ends of a line
  explicit LineSplitter(bool keeps_spaces) : keeps_spaces_(keeps_spaces) {}

  void scan(const std::string& text, bool at_end) override {
    while (scanned_ < text.size()) {
      const size_t end = text.find('\n', std::max(scanned_, searched_));
      searched_ = text.size();
      if (end == std::string::npos && !at_end) return;
      searched_ = 0;
      const size_t stop = std::min(end, text.size());
      const std::string_view whole = std::string_view(text).substr(scanned_, stop - scanned_);
      std::string_view line = trim(whole);
      if (!line.empty()) {
        if (keeps_spaces_) line = whole.substr(0, whole.size() - (whole.back() == '\r' ? 1 : 0));
        const auto begin = static_cast<size_t>(line.data() - text.data());
        records_.push_back({begin, begin + line.size(), line_});
      }
      ++line_;
      scanned_ = complete_ = std::min(stop + 1, text.size());
    }
  }

 private:
  void moved(size_t num_bytes) override { searched_ -= std::min(num_bytes, searched_); }

  bool keeps_spaces_;
  size_t searched_ = 0;  // no line ends before it
};

/// The elements of one array. Only braces, brackets and strings are scanned; each element is
/// validated when it is parsed.
class ArraySplitter final : public Splitter {
 public:
  explicit ArraySplitter(std::string name) : name_(std::move(name)) {}

  void scan(const std::string& text, bool at_end) override {
    for (; scanned_ < text.size(); ++scanned_) {
      const char c = text[scanned_];
      if (c == '\n') ++line_;
      if (in_string_) {
        in_string_ = escaped_ || c != '"';
        escaped_ = !escaped_ && c == '\\';
      } else {
        look_at(c);
      }
    }
    if (at_end && !closed_) {
      throw DataError("the JSON array is not closed", fmt::format("{}:{}", name_, line_),
                      "the file is truncated: write it again");
    }
    if (closed_) complete_ = scanned_;
  }

 private:
  void moved(size_t num_bytes) override { element_.begin -= num_bytes; }

  void look_at(char c) {
    const bool is_space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (is_space) return;
    if (closed_) refuse("text follows the end of the JSON array");
    if (depth_ == 0) {  // the array's own bracket
      depth_ = 1;
      return;
    }
    const bool is_end = depth_ == 1 && (c == ',' || c == ']');
    if (is_end) {
      end_element(c);
      return;
    }
    if (depth_ == 1 && !in_element_) {
      in_element_ = true;
      element_ = {scanned_, 0, line_};
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
    if (depth_ < 1) refuse("one closing bracket too many");
  }

  void end_element(char c) {
    if (in_element_) {
      element_.end = scanned_;
      records_.push_back(element_);
    } else if (c == ',' || any_) {
      refuse("an element of the JSON array is missing");
    }
    any_ = true;
    in_element_ = false;
    closed_ = c == ']';
    complete_ = scanned_ + 1;
  }

  [[noreturn]] void refuse(const char* what) const {
    throw DataError(what, fmt::format("{}:{}", name_, line_),
                    "the file must be one JSON array of objects, or have one JSON object per line");
  }

  std::string name_;
  JsonBlock::Place element_;
  int64_t depth_ = 0;
  bool in_string_ = false, escaped_ = false, in_element_ = false, closed_ = false, any_ = false;
};

class JsonReader final : public RecordReader {
 public:
  JsonReader(std::unique_ptr<ByteStream> stream, std::string name, LineForm form,
             const ReadSizes& sizes)
      : stream_(std::move(stream)), name_(std::move(name)), sizes_(sizes) {
    begin(form);
  }

  std::unique_ptr<RecordBlock> next() override {
    for (;;) {
      splitter_->scan(text_, at_end_);
      require_within_limits();
      if (at_end_ || splitter_->num_complete() >= sizes_.block_bytes) {
        const size_t end = splitter_->num_complete();
        std::string block = text_.substr(0, end);
        text_.erase(0, end);
        blank_bytes_ = splitter_->has_records() ? 0 : blank_bytes_ + end;
        std::vector<JsonBlock::Place> records = splitter_->take();
        if (!records.empty() && is_text_)
          return std::make_unique<TextBlock>(std::move(block), std::move(records), true, at_end_);
        if (!records.empty())
          return std::make_unique<JsonBlock>(std::move(block), std::move(records), !is_array_,
                                             at_end_);
        if (at_end_) return nullptr;
      }
      read_more();
    }
  }

  bool is_table() const override { return false; }
  bool is_plain_text() const override { return is_text_; }
  uint64_t file_position() const override { return stream_->file_position(); }

 private:
  /// An array begins with its bracket; everything else is lines.
  void begin(LineForm form) {
    size_t blank = 0;  // bytes without a character
    const auto first_character = [&] {
      if (blank == 0 && text_.starts_with(kByteOrderMark)) blank = kByteOrderMark.size();
      const size_t first = text_.find_first_not_of(kSpaces, blank);
      blank = std::min(first, text_.size());
      return first;
    };
    while (!at_end_ &&
           (text_.size() < sizes_.read_bytes || first_character() == std::string::npos)) {
      read_more();
      if (text_.size() > sizes_.limits.blank_bytes && first_character() == std::string::npos)
        fail_blank(1);
    }
    require_no_wide_encoding(text_, name_);
    const size_t first = first_character();
    const bool is_empty = first == std::string::npos;
    is_text_ = form == LineForm::kText ||
               (form == LineForm::kEither && !is_empty && !begins_like_json(first));
    is_array_ = !is_text_ && !is_empty && text_[first] == '[' && !first_line_is_a_record(first);
    if (text_.starts_with(kByteOrderMark)) text_.erase(0, kByteOrderMark.size());
    if (is_array_) {
      splitter_ = std::make_unique<ArraySplitter>(name_);
    } else {
      splitter_ = std::make_unique<LineSplitter>(/*keeps_spaces=*/is_text_);
    }
  }

  /// The position of a character from `begin` on that is no space; npos: there is none, or it is
  /// far.
  size_t next_character(size_t begin) {
    size_t found = text_.find_first_not_of(kSpaces, begin);
    while (found == std::string::npos && !at_end_ &&
           text_.size() - begin <= sizes_.limits.blank_bytes) {
      read_more();
      found = text_.find_first_not_of(kSpaces, begin);
    }
    return found;
  }

  /// {"… and [{… are JSON, [Verse 1] is text.
  bool begins_like_json(size_t first) {
    const char begin = text_[first];
    if (begin != '{' && begin != '[') return false;
    const size_t second = next_character(first + 1);
    if (second == std::string::npos) return true;
    return std::string_view(begin == '{' ? "\"}" : "{[]").find(text_[second]) !=
           std::string_view::npos;
  }

  /// Lines of JSON of which the first is a list, a bad record: the list ends with its line, and
  /// other lines follow. A longer line is an array's.
  bool first_line_is_a_record(size_t first) {
    constexpr size_t kLongest = size_t{1} << 20;
    size_t end = text_.find('\n', first);
    while (end == std::string::npos && !at_end_ && text_.size() - first <= kLongest) {
      read_more();
      end = text_.find('\n', first);
    }
    if (end == std::string::npos || end - first > kLongest) return false;
    return is_one_list(trim(std::string_view(text_).substr(first, end - first))) &&
           next_character(end) != std::string::npos;
  }

  void require_within_limits() const {
    if (splitter_->num_pending(text_) > sizes_.limits.record_bytes) {
      throw DataError(
          fmt::format("a record of more than {} MiB", sizes_.limits.record_bytes >> 20),
          fmt::format("{}:{}", name_, splitter_->line()),
          "write one JSON object per line; split such a long text into several records");
    }
    if (blank_bytes_ > sizes_.limits.blank_bytes) fail_blank(splitter_->line());
  }

  [[noreturn]] void fail_blank(int64_t line) const {
    throw DataError(fmt::format("more than {} MiB of empty lines, and no record",
                                sizes_.limits.blank_bytes >> 20),
                    fmt::format("{}:{}", name_, line), "the file is damaged: write it again");
  }

  void read_more() {
    const size_t size = text_.size();
    text_.resize(size + sizes_.read_bytes);
    const size_t got = stream_->read(text_.data() + size, sizes_.read_bytes);
    text_.resize(size + got);
    at_end_ = got == 0;
  }

  std::unique_ptr<ByteStream> stream_;
  std::string name_, text_;
  ReadSizes sizes_;
  std::unique_ptr<Splitter> splitter_;
  size_t blank_bytes_ = 0;  // since the last record
  bool at_end_ = false, is_text_ = false, is_array_ = false;
};

}  // namespace

std::unique_ptr<RecordReader> read_json_records(std::unique_ptr<ByteStream> stream,
                                                const std::string& name, LineForm form,
                                                const ReadSizes& sizes) {
  return std::make_unique<JsonReader>(std::move(stream), name, form, sizes);
}

}  // namespace sftrun::data
