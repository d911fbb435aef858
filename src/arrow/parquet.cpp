#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/properties.h>

#include <new>

#include "readers.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"

namespace sftrun::arrow_readers {
namespace {

constexpr int64_t kBatchRows = 2048;

/// Progress by rows, because the file's offsets jump between columns.
struct Progress {
  uint64_t file_bytes = 0;
  int64_t num_rows = 0, rows_read = 0;
  uint64_t position() const {
    return num_rows == 0 ? file_bytes
                         : static_cast<uint64_t>(static_cast<double>(file_bytes) *
                                                 static_cast<double>(rows_read) /
                                                 static_cast<double>(num_rows));
  }
};

std::unique_ptr<parquet::arrow::FileReader> open(const std::filesystem::path& file) {
  parquet::arrow::FileReaderBuilder builder;
  parquet::ReaderProperties properties = parquet::default_reader_properties();
  properties.enable_buffered_stream();  // a row group may be larger than memory
  check(builder.Open(value_of(arrow::io::ReadableFile::Open(file.string()), file), properties),
        file);
  parquet::ArrowReaderProperties arrow_properties = parquet::default_arrow_reader_properties();
  arrow_properties.set_batch_size(kBatchRows);
  arrow_properties.set_pre_buffer(false);
  arrow_properties.set_use_threads(false);
  return value_of(builder.properties(arrow_properties)->Build(), file);
}

}  // namespace

std::unique_ptr<data::RecordReader> read_parquet(const std::filesystem::path& file) try {
  const std::shared_ptr<parquet::arrow::FileReader> reader = open(file);
  const auto progress = std::make_shared<Progress>();
  progress->file_bytes = bytes_of_file(file);
  progress->num_rows = reader->parquet_reader()->metadata()->num_rows();
  const std::shared_ptr<arrow::RecordBatchReader> batches =
      value_of(reader->GetRecordBatchReader(), file);
  return read_batches(
      {.file = file,
       .next = [reader, batches, progress]() -> arrow::Result<std::shared_ptr<arrow::RecordBatch>> {
         ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::RecordBatch> batch, batches->Next());
         if (batch) progress->rows_read += batch->num_rows();
         return batch;
       },
       .file_position = [progress] { return progress->position(); }});
} catch (const Error&) {
  throw;
} catch (const std::bad_alloc&) {
  fail_for_memory(file);
} catch (const std::exception& error) {  // parquet::ParquetException
  fail(error.what(), file);
}

}  // namespace sftrun::arrow_readers
