#include <arrow/table.h>
#include <parquet/arrow/writer.h>

#include "arrow_files.h"

namespace sftrun::arrow_readers {
namespace {

class Parquet : public ::testing::Test {
 protected:
  void write(const std::shared_ptr<arrow::RecordBatch>& batch, int64_t group_rows = 1 << 20,
             arrow::Compression::type compression = arrow::Compression::UNCOMPRESSED) {
    const auto out = ok(arrow::io::FileOutputStream::Open(file_.string()));
    const auto table = ok(arrow::Table::FromRecordBatches({batch}));
    ok(parquet::arrow::WriteTable(
        *table, arrow::default_memory_pool(), out, group_rows,
        parquet::WriterProperties::Builder().compression(compression)->build(),
        parquet::ArrowWriterProperties::Builder().store_schema()->build()));
    ok(out->Close());
  }
  Rows read() { return rows_of(*read_parquet(file_)); }

  test::TemporaryDirectory dir_;
  const std::filesystem::path file_ = dir_ / "a.parquet";
};

const auto kTurns = arrow::list(
    arrow::struct_({arrow::field("role", arrow::utf8()), arrow::field("content", arrow::utf8())}));

TEST_F(Parquet, ARowIsARecordWithoutItsNulls) {
  const auto batch = batch_of(
      {{"text", array_of(arrow::utf8(), R"(["a", null, "日本"])")},
       {"turns", array_of(kTurns, R"([[["user", "q"], ["assistant", null]], [], null])")},
       {"kind", array_of(arrow::dictionary(arrow::int32(), arrow::utf8()), R"(["x", "y", "x"])")},
       {"price", array_of(arrow::decimal128(10, 2), R"(["1.50", "-0.05", null])")},
       {"when", array_of(arrow::timestamp(arrow::TimeUnit::MILLI, "UTC"), "[0, 1500, null]")}});
  const Rows rows = {
      {1,
       R"({"text":"a","turns":[{"role":"user","content":"q"},{"role":"assistant"}],"kind":"x","price":1.50,"when":"1970-01-01 00:00:00.000Z"})"},
      {2, R"({"turns":[],"kind":"y","price":-0.05,"when":"1970-01-01 00:00:01.500Z"})"},
      {3, R"({"text":"日本","kind":"x"})"}};
  for (const auto compression :
       {arrow::Compression::UNCOMPRESSED, arrow::Compression::SNAPPY, arrow::Compression::ZSTD}) {
    write(batch, 2, compression);
    EXPECT_EQ(read(), rows);
  }
}

TEST_F(Parquet, RowsAreNumberedOverGroupsAndProgressGoesToTheEnd) {
  constexpr int64_t kRows = 6000;
  write(batch_of({{"n", range(0, kRows)}}), 2500);
  const auto reader = read_parquet(file_);
  EXPECT_TRUE(reader->is_table());
  EXPECT_FALSE(reader->has_text_cells());
  EXPECT_EQ(reader->file_position(), 0U);
  const uint64_t file_bytes = bytes_of(file_).size();
  int64_t row = 0;
  uint64_t before = 0;
  while (const auto block = reader->next()) {
    EXPECT_GE(reader->file_position(), before);
    before = reader->file_position();
    EXPECT_LE(before, file_bytes);
    for (size_t i = 0; i < block->size(); ++i, ++row) {
      ASSERT_EQ(block->number(i), row + 1);
      ASSERT_EQ(block->parse(i, "here").at("n"), row);
    }
  }
  EXPECT_EQ(row, kRows);
  EXPECT_EQ(reader->file_position(), file_bytes);
}

TEST_F(Parquet, ATableWithoutRowsIsEmpty) {
  write(batch_of({{"text", array_of(arrow::utf8(), "[]")}}));
  const auto reader = read_parquet(file_);
  EXPECT_EQ(reader->next(), nullptr);
  EXPECT_EQ(reader->file_position(), bytes_of(file_).size());
}

TEST_F(Parquet, ACutFileIsAnError) {
  write(batch_of({{"text", array_of(arrow::utf8(), R"(["a", "b"])")}}));
  const std::string whole = bytes_of(file_);
  for (size_t size = 0; size < whole.size(); size += size < 16 ? 1 : 13) {
    write_bytes(file_, whole.substr(0, size));
    expect_damaged(failure_of([&] { read(); }), file_);
  }
}

TEST_F(Parquet, DamagedPagesAreAnError) {
  write(batch_of({{"n", range(0, 3000)}}), 3000, arrow::Compression::SNAPPY);
  std::string bytes = bytes_of(file_);
  for (size_t i = 4; i < 400; ++i) bytes[i] = static_cast<char>(0xFF);
  write_bytes(file_, bytes);
  expect_damaged(failure_of([&] { read(); }), file_);
}

TEST_F(Parquet, AFileThatDoesNotExistIsAnError) {
  EXPECT_EQ(failure_of([&] { read(); }).where(), file_.string());
}

}  // namespace
}  // namespace sftrun::arrow_readers
