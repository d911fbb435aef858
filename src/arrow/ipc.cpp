#include <arrow/buffer.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>

#include <memory>

#include "readers.h"

namespace sftrun::arrow_readers {

/// Reads Arrow's file format, or its stream format, which `datasets` writes (save_to_disk).
std::unique_ptr<data::RecordReader> read_arrow(const std::filesystem::path& file) {
  const std::shared_ptr<arrow::io::ReadableFile> input =
      value_of(arrow::io::ReadableFile::Open(file.string()), file);
  const auto position = [input] {
    const auto offset = input->Tell();
    return offset.ok() ? static_cast<uint64_t>(*offset) : uint64_t{0};
  };
  const auto magic = value_of(input->ReadAt(0, 6), file);
  check(input->Seek(0), file);
  if (magic->ToString() == "ARROW1") {
    const std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader =
        value_of(arrow::ipc::RecordBatchFileReader::Open(input), file);
    const auto size = static_cast<uint64_t>(value_of(input->GetSize(), file));
    const auto next = std::make_shared<int>(0);
    return read_batches(
        {.file = file,
         .next = [reader, next]() -> arrow::Result<std::shared_ptr<arrow::RecordBatch>> {
           if (*next == reader->num_record_batches()) return nullptr;
           return reader->ReadRecordBatch((*next)++);
         },
         // Batches are read at their offsets, which move no position.
         .file_position = [reader, next, size]() -> uint64_t {
           const int all = reader->num_record_batches();
           return all == 0 ? size
                           : size * static_cast<uint64_t>(*next) / static_cast<uint64_t>(all);
         }});
  }
  const std::shared_ptr<arrow::ipc::RecordBatchStreamReader> reader =
      value_of(arrow::ipc::RecordBatchStreamReader::Open(input), file);
  return read_batches(
      {.file = file, .next = [reader]() { return reader->Next(); }, .file_position = position});
}

}  // namespace sftrun::arrow_readers
