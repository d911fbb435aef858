#pragma once

#include <arrow/array.h>
#include <arrow/builder.h>
#include <arrow/io/file.h>
#include <arrow/json/from_string.h>
#include <arrow/record_batch.h>
#include <arrow/util/compression.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "readers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

/// Files of tables that tests write, and what the readers make of them.
namespace sftrun::arrow_readers {

template <class T>
T ok(arrow::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return std::move(result).ValueUnsafe();
}
inline void ok(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

/// @param values a JSON array, as Arrow's FromJSON functions read it
inline std::shared_ptr<arrow::Array> array_of(const std::shared_ptr<arrow::DataType>& type,
                                              const std::string& values) {
  return ok(arrow::json::ArrayFromJSONString(type, values));
}

using Column = std::pair<std::string, std::shared_ptr<arrow::Array>>;
inline std::shared_ptr<arrow::RecordBatch> batch_of(const std::vector<Column>& columns) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  const int64_t rows = arrays.empty() ? 0 : arrays[0]->length();
  return arrow::RecordBatch::Make(arrow::schema(fields), rows, arrays);
}

/// The integers [first, first + count).
inline std::shared_ptr<arrow::Array> range(int64_t first, int64_t count) {
  arrow::Int64Builder builder;
  for (int64_t i = 0; i < count; ++i) ok(builder.Append(first + i));
  return ok(builder.Finish());
}

/// A row as a record, or why it is none.
struct ReadRow {
  int64_t number = 0;
  std::string text;
  bool operator==(const ReadRow&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const ReadRow& row) {
  return out << row.number << ": " << row.text;
}
using Rows = std::vector<ReadRow>;

inline Rows rows_of(data::RecordReader& reader) {
  Rows rows;
  while (const auto block = reader.next()) {
    EXPECT_GT(block->size(), 0U);
    for (size_t i = 0; i < block->size(); ++i) {
      std::string text;
      try {
        text = to_json_text(block->parse(i, "here"));
      } catch (const DataError& error) {
        text = error.message();
      }
      rows.push_back({block->number(i), text});
    }
  }
  return rows;
}

/// Without waiting for the disk, as write_file_atomically does: tests write hundreds of files.
inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}
inline std::string bytes_of(const std::filesystem::path& file) {
  return read_text_file(file);
}

inline std::string compressed(const std::string& text, arrow::Compression::type type) {
  const auto codec = ok(arrow::util::Codec::Create(type));
  const auto* input = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  std::string out(static_cast<size_t>(codec->MaxCompressedLen(size, input)), '\0');
  const int64_t length = ok(codec->Compress(size, input, static_cast<int64_t>(out.size()),
                                            reinterpret_cast<uint8_t*>(out.data())));
  out.resize(static_cast<size_t>(length));
  return out;
}
inline std::string gzipped(const std::string& text) {
  return compressed(text, arrow::Compression::GZIP);
}
inline std::string zstd_of(const std::string& text) {
  return compressed(text, arrow::Compression::ZSTD);
}

/// The DataError that reading throws.
template <class Body>
DataError failure_of(Body&& body) {
  try {
    body();
  } catch (const DataError& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return DataError("");
}

/// A damaged file: the error names it, and says to fetch or write it again.
inline void expect_damaged(const DataError& error, const std::filesystem::path& file) {
  EXPECT_TRUE(error.message().starts_with("cannot read: ")) << error.message();
  EXPECT_EQ(error.where(), file.string());
  EXPECT_EQ(error.fix(), "the file is damaged or cut off: fetch or write it again");
}

}  // namespace sftrun::arrow_readers
