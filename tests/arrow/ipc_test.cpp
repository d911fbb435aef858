#include <arrow/ipc/writer.h>

#include "arrow_files.h"

namespace sftrun::arrow_readers {
namespace {

using Batches = std::vector<std::shared_ptr<arrow::RecordBatch>>;

/// Arrow's two formats.
class Ipc : public ::testing::TestWithParam<bool> {
 protected:
  static bool is_stream() { return GetParam(); }
  void write(const Batches& batches,
             const std::optional<arrow::Compression::type>& compression = {}) {
    const auto out = ok(arrow::io::FileOutputStream::Open(file_.string()));
    auto options = arrow::ipc::IpcWriteOptions::Defaults();
    if (compression) options.codec = ok(arrow::util::Codec::Create(*compression));
    const auto& schema = batches.at(0)->schema();
    const auto writer = ok(is_stream() ? arrow::ipc::MakeStreamWriter(out, schema, options)
                                       : arrow::ipc::MakeFileWriter(out, schema, options));
    for (const auto& batch : batches) ok(writer->WriteRecordBatch(*batch));
    ok(writer->Close());
    ok(out->Close());
  }
  Rows read() { return rows_of(*read_arrow(file_)); }

  test::TemporaryDirectory dir_;
  const std::filesystem::path file_ = dir_ / "a.arrow";
};

TEST_P(Ipc, BatchesFollowOneAnother) {
  const auto batch = [](int64_t first, int64_t count) {
    return batch_of({{"n", range(first, count)}});
  };
  write({batch(0, 0), batch(0, 2), batch(0, 0), batch(2, 3000)});
  const auto reader = read_arrow(file_);
  EXPECT_TRUE(reader->is_table());
  EXPECT_FALSE(reader->has_text_cells());
  const Rows rows = rows_of(*reader);
  ASSERT_EQ(rows.size(), 3002U);
  for (size_t i = 0; i < rows.size(); ++i)
    ASSERT_EQ(rows[i],
              (ReadRow{static_cast<int64_t>(i + 1), R"({"n":)" + std::to_string(i) + "}"}));
  EXPECT_EQ(reader->file_position(), bytes_of(file_).size());
}

TEST_P(Ipc, DictionariesAndCompressedBuffersAreRead) {
  const auto kind = arrow::dictionary(arrow::int8(), arrow::utf8());
  const auto batch = batch_of({{"kind", array_of(kind, R"(["x", null, "y"])")},
                               {"text", array_of(arrow::utf8(), R"(["aaaaaaaa", "b", null])")}});
  const Rows rows = {
      {1, R"({"kind":"x","text":"aaaaaaaa"})"}, {2, R"({"text":"b"})"}, {3, R"({"kind":"y"})"}};
  write({batch});
  EXPECT_EQ(read(), rows);
  for (const auto compression : {arrow::Compression::ZSTD, arrow::Compression::LZ4_FRAME}) {
    write({batch}, compression);
    EXPECT_EQ(read(), rows);
  }
}

TEST_P(Ipc, ATableWithoutRowsIsEmpty) {
  write({batch_of({{"text", array_of(arrow::utf8(), "[]")}})});
  EXPECT_EQ(read(), Rows{});
}

TEST_P(Ipc, ACutFileIsAnError) {
  write({batch_of({{"n", range(0, 10)}})});
  const std::string whole = bytes_of(file_);
  // Behind its last batch a stream has 8 bytes, without which it is complete, too.
  const size_t end = whole.size() - (is_stream() ? 8 : 0);
  for (size_t size = 8; size < end; size += 7) {
    write_bytes(file_, whole.substr(0, size));
    expect_damaged(failure_of([&] { read(); }), file_);
  }
}

TEST_P(Ipc, FilesThatAreEmptyOrOfAnotherKindAreErrors) {
  for (const char* bytes : {"", "A", "{\"text\": \"a\"}\n", "ARROW1 and nothing else of it"}) {
    write_bytes(file_, bytes);
    const DataError error = failure_of([&] { read(); });
    EXPECT_TRUE(error.message().starts_with("cannot read: ")) << error.message();
    EXPECT_EQ(error.where(), file_.string());
  }
  std::filesystem::remove(file_);
  EXPECT_EQ(failure_of([&] { read(); }).where(), file_.string());
}

INSTANTIATE_TEST_SUITE_P(Formats, Ipc, ::testing::Bool(),
                         [](const auto& format) { return format.param ? "stream" : "file"; });

}  // namespace
}  // namespace sftrun::arrow_readers
