#include <arrow/csv/reader.h>
#include <arrow/type.h>

#include <memory>
#include <utility>

#include "open.h"
#include "open_quote.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::arrow_readers {

namespace {

constexpr size_t kMaxBadRows = 100'000;  // at once, with no good one among them
constexpr size_t kShownBytes = 1000;

}  // namespace

/// Every column a text: "007" stays what it is.
std::unique_ptr<data::RecordReader> read_csv(const std::filesystem::path& file,
                                             Compression compression, char delimiter) {
  auto read = arrow::csv::ReadOptions::Defaults();
  read.use_threads = false;  // with threads, errors would not name their rows
  read.block_size = 16 << 20;
  auto parse = arrow::csv::ParseOptions::Defaults();
  parse.delimiter = delimiter;
  parse.newlines_in_values = true;
  const auto bad = std::make_shared<std::vector<BadRow>>();
  parse.invalid_row_handler = [bad](const arrow::csv::InvalidRow& row) {
    if (row.number < 2 || bad->size() == kMaxBadRows) return arrow::csv::InvalidRowResult::Error;
    const std::string shown = one_line(std::string(row.text.substr(0, kShownBytes)));
    bad->push_back({row.number - 1,
                    fmt::format("expected {}, got {}: {}", counted(row.expected_columns, "column"),
                                row.actual_columns, excerpt(shown))});
    return arrow::csv::InvalidRowResult::Skip;
  };
  auto convert = arrow::csv::ConvertOptions::Defaults();
  convert.default_column_type = arrow::utf8();
  const OpenedInput input = open_input(file, compression);
  const auto reader =
      value_of(arrow::csv::StreamingReader::Make(arrow::io::default_io_context(),
                                                 with_quotes_checked(input.stream, delimiter), read,
                                                 parse, convert),
               file);
  return read_batches({.file = file,
                       .next = [reader]() -> arrow::Result<std::shared_ptr<arrow::RecordBatch>> {
                         std::shared_ptr<arrow::RecordBatch> batch;
                         ARROW_RETURN_NOT_OK(reader->ReadNext(&batch));
                         return batch;
                       },
                       .file_position = [input] { return input.file_position(); },
                       .take_bad_rows = [bad] { return std::exchange(*bad, {}); },
                       .has_text_cells = true});
}

}  // namespace sftrun::arrow_readers
