#include "open_quote.h"

#include <arrow/buffer.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "sftrun/core/read_limits.h"

namespace sftrun::arrow_readers {
namespace {

/// Tracks fields and quotes like Arrow's parser: a quote opens only at the beginning of a field,
/// and a doubled quote inside is a literal one.
class QuoteScanner {
 public:
  explicit QuoteScanner(char delimiter) : delimiter_(delimiter) {}

  void scan(std::string_view bytes) {
    for (const char c : bytes) {
      if (c == '\0' && nul_row_ < 0) nul_row_ = row_;
      if (state_ == State::kQuoted) {
        if (c == '"') state_ = State::kQuoteInside;
      } else {
        step(c);
      }
    }
  }

  /// What no table has: it would be read for ever, or the file is damaged.
  std::string excess() const {
    const ReadLimits limits;
    if (num_columns_ > limits.columns)
      return "the header names more than " + std::to_string(limits.columns) + " columns";
    if (blank_bytes_ > limits.blank_bytes)
      return "more than " + std::to_string(limits.blank_bytes >> 20) +
             " MiB of empty lines, and no row";
    if (nul_row_ == 0) return "the header holds a NUL byte";
    if (nul_row_ > 0) return "row " + std::to_string(nul_row_) + " holds a NUL byte";
    return {};
  }

  bool is_open() const { return state_ == State::kQuoted; }
  /// Where the last quote was opened; rows are counted after the header, without empty lines.
  std::string place() const {
    return row_ == 0 ? "the header opens" : "row " + std::to_string(row_) + " opens";
  }

 private:
  enum class State { kFieldStart, kField, kQuoted, kQuoteInside };

  void step(char c) {
    // Opens a field, or is the second of a doubled quote
    if (c == '"' && state_ != State::kField) {
      state_ = State::kQuoted;
      line_is_empty_ = false;
    } else if (c == '\n' || c == '\r') {
      state_ = State::kFieldStart;
      if (!line_is_empty_) ++row_;
      blank_bytes_ = line_is_empty_ ? blank_bytes_ + 1 : 0;
      line_is_empty_ = true;
    } else if (!(row_ == 0 && line_is_empty_ && is_byte_order_mark(c))) {
      state_ = c == delimiter_ ? State::kFieldStart : State::kField;
      if (row_ == 0 && c == delimiter_) ++num_columns_;
      line_is_empty_ = false;
    }
  }

  static bool is_byte_order_mark(char c) { return c == '\xEF' || c == '\xBB' || c == '\xBF'; }

  char delimiter_;
  State state_ = State::kFieldStart;
  bool line_is_empty_ = true;
  int64_t row_ = 0, nul_row_ = -1;  // -1: there is no NUL byte
  size_t num_columns_ = 1, blank_bytes_ = 0;
};

class QuoteChecked final : public arrow::io::InputStream {
 public:
  QuoteChecked(std::shared_ptr<arrow::io::InputStream> stream, char delimiter)
      : stream_(std::move(stream)), scanner_(delimiter) {}

  arrow::Status Close() override { return stream_->Close(); }
  bool closed() const override { return stream_->closed(); }
  arrow::Result<int64_t> Tell() const override { return stream_->Tell(); }

  /// Fills `out`, unless the file ends. Adds the line end that a file's last line may lack: Arrow finds
  /// no columns in a block without one.
  arrow::Result<int64_t> Read(int64_t size, void* out) override {
    auto* to = static_cast<char*>(out);
    for (int64_t filled = 0; filled < size;) {
      ARROW_ASSIGN_OR_RAISE(const int64_t got, stream_->Read(size - filled, to + filled));
      const std::string_view bytes(to + filled, static_cast<size_t>(got));
      ARROW_RETURN_NOT_OK(look_at(bytes));
      filled += got;
      if (got > 0) line_is_open_ = bytes.back() != '\n' && bytes.back() != '\r';
      if (got > 0) continue;
      if (std::exchange(line_is_open_, false)) to[filled++] = '\n';
      return filled;
    }
    return size;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t size) override {
    ARROW_ASSIGN_OR_RAISE(std::unique_ptr<arrow::ResizableBuffer> buffer,
                          arrow::AllocateResizableBuffer(size));
    ARROW_ASSIGN_OR_RAISE(const int64_t filled, Read(size, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(filled));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

 private:
  arrow::Status look_at(std::string_view bytes) {
    scanner_.scan(bytes);
    if (const std::string excess = scanner_.excess(); !excess.empty())
      return arrow::Status::Invalid(excess);
    if (!bytes.empty() || !scanner_.is_open()) return arrow::Status::OK();
    return arrow::Status::Invalid("the quote that ", scanner_.place(),
                                  " is not closed before the file ends");
  }

  std::shared_ptr<arrow::io::InputStream> stream_;
  QuoteScanner scanner_;
  bool line_is_open_ = false;
};

}  // namespace

std::shared_ptr<arrow::io::InputStream> with_quotes_checked(
    std::shared_ptr<arrow::io::InputStream> stream, char delimiter) {
  return std::make_shared<QuoteChecked>(std::move(stream), delimiter);
}

}  // namespace sftrun::arrow_readers
