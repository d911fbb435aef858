#include <arrow/csv/reader.h>
#include <arrow/type.h>

#include "open.h"
#include "open_quote.h"

namespace sftrun::arrow_readers {

/// Every column a text: "007" stays what it is.
std::unique_ptr<data::RecordReader> read_csv(const std::filesystem::path& file,
                                             Compression compression, char delimiter) {
  auto read = arrow::csv::ReadOptions::Defaults();
  read.use_threads = false;  // with threads, errors would not name their rows
  read.block_size = 16 << 20;
  auto parse = arrow::csv::ParseOptions::Defaults();
  parse.delimiter = delimiter;
  parse.newlines_in_values = true;
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
                       .file_position = [input] { return input.file_position(); }});
}

}  // namespace sftrun::arrow_readers
