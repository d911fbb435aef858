#include "arrow_files.h"
#include "sftrun/core/read_limits.h"

namespace sftrun::arrow_readers {
namespace {

class Csv : public ::testing::Test {
 protected:
  Rows read(const std::string& bytes, Compression compression = Compression::kNone,
            char delimiter = ',') {
    write_bytes(file_, bytes);
    const auto reader = read_csv(file_, compression, delimiter);
    EXPECT_TRUE(reader->is_table());
    EXPECT_TRUE(reader->has_text_cells());
    Rows rows = rows_of(*reader);
    EXPECT_EQ(reader->file_position(), bytes.size());
    return rows;
  }
  DataError failure(const std::string& bytes) {
    return failure_of([&] { read(bytes); });
  }

  test::TemporaryDirectory dir_;
  const std::filesystem::path file_ = dir_ / "a.csv";
};

TEST_F(Csv, EveryCellIsAText) {
  EXPECT_EQ(read("id,value,note\n007,1.50,\ntrue,NA,null"),
            (Rows{{1, R"({"id":"007","value":"1.50","note":""})"},
                  {2, R"({"id":"true","value":"NA","note":"null"})"}}));
  EXPECT_EQ(read("id\tnote\n1\ta,b\n", Compression::kNone, '\t'),
            (Rows{{1, R"({"id":"1","note":"a,b"})"}}));
}

TEST_F(Csv, QuotedCellsHoldDelimitersAndLineEnds) {
  EXPECT_EQ(
      read("\xEF\xBB\xBFq,a\r\n\"one, two\",\"line\r\nnext \"\"quoted\"\"\"\r\n\"\",x\"y\r\n"),
      (Rows{{1, R"({"q":"one, two","a":"line\r\nnext \"quoted\""})"},
            {2, R"({"q":"","a":"x\"y"})"}}));
}

TEST_F(Csv, EmptyLinesAreNoRows) {
  EXPECT_EQ(read("a,b\n\n1,2\n\n\n3,4\n\n"),
            (Rows{{1, R"({"a":"1","b":"2"})"}, {2, R"({"a":"3","b":"4"})"}}));
  EXPECT_EQ(read("a,b\n"), Rows{});
  EXPECT_EQ(read("a,b"), Rows{}) << "a header without a line end";
}

TEST_F(Csv, IsReadFromCompressedFiles) {
  const Rows rows = {{1, R"({"a":"1"})"}, {2, R"({"a":"2"})"}};
  EXPECT_EQ(read(gzipped("a\n1\n") + gzipped("2\n"), Compression::kGzip), rows);
  EXPECT_EQ(read(zstd_of("a\n1\n2\n"), Compression::kZstd), rows);
}

TEST_F(Csv, ABadRowIsReportedAtItsNumber) {
  const std::string three = "expected 2 columns, got 3: x,y,z",
                    one = "expected 2 columns, got 1: q";
  EXPECT_EQ(read("a,b\n1,2\nx,y,z\n3,4\nq\n"),
            (Rows{{1, R"({"a":"1","b":"2"})"}, {2, three}, {3, R"({"a":"3","b":"4"})"}, {4, one}}));
  EXPECT_EQ(read("a,b\nx,y,z\nx,y,z\n1,2\n"),
            (Rows{{1, three}, {2, three}, {3, R"({"a":"1","b":"2"})"}}));
  write_bytes(file_, "a,b\n1,2\nx,y,z\n3,4\n");
  const auto block = read_csv(file_, Compression::kNone, ',')->next();
  const DataError error = failure_of([&] { block->parse(1, "the place"); });
  EXPECT_EQ(error.where(), "the place");
  EXPECT_EQ(error.fix(), kQuoteFix);
}

TEST_F(Csv, BadRowsAreCountedBeyondABlock) {
  std::string text = "a,b\n";
  constexpr int64_t kRows = 5000;  // of two blocks and a half
  for (int64_t i = 1; i <= kRows; ++i) text += i % 1000 == 0 ? "bad\n" : std::to_string(i) + ",x\n";
  const Rows rows = read(text);
  ASSERT_EQ(rows.size(), static_cast<size_t>(kRows));
  for (int64_t i = 1; i <= kRows; ++i) {
    const ReadRow& row = rows[static_cast<size_t>(i - 1)];
    ASSERT_EQ(row.number, i);
    ASSERT_EQ(row.text, i % 1000 == 0 ? "expected 2 columns, got 1: bad"
                                      : R"({"a":")" + std::to_string(i) + R"(","b":"x"})");
  }
}

TEST_F(Csv, AQuoteThatIsNeverClosedIsAnError) {
  const DataError in_row = failure("a,b\n1,2\n3,\"four\n5,6\n");
  EXPECT_EQ(in_row.message(),
            "cannot read: the quote that row 2 opens is not closed before the file ends");
  EXPECT_EQ(in_row.where(), file_.string());
  EXPECT_TRUE(in_row.fix().starts_with("close the quote")) << in_row.fix();
  const DataError in_header = failure("\"a,b\n1,2\n");
  EXPECT_EQ(in_header.where(), file_.string());
  EXPECT_EQ(in_header.message(),
            "cannot read: the quote that the header opens is not closed before the file ends");
  EXPECT_EQ(failure("a,b\n\n\n\"1,2\n").message(),
            "cannot read: the quote that row 1 opens is not closed before the file ends")
      << "empty lines are no rows";
  EXPECT_EQ(failure("a,b\n\"x\"\"y,2\n").message(),
            "cannot read: the quote that row 1 opens is not closed before the file ends")
      << "a doubled quote closes nothing";
}

TEST_F(Csv, ANulByteIsAnError) {
  using std::string_literals::operator""s;
  EXPECT_EQ(failure("a,b\n1,2\n\0,4\n"s).message(), "cannot read: row 2 holds a NUL byte");
  EXPECT_EQ(failure("a\0,b\n1,2\n"s).message(), "cannot read: the header holds a NUL byte");
  EXPECT_EQ(failure("a,b\n1,\"x\0\"\n"s).message(), "cannot read: row 1 holds a NUL byte");
}

TEST_F(Csv, OtherEncodingsAreAnErrorWithTheWayToConvertThem) {
  const DataError error = failure("a,b\n1,caf\xE9\n");
  EXPECT_NE(error.message().find("UTF8"), std::string::npos) << error.message();
  EXPECT_EQ(error.where(), file_.string());
  EXPECT_TRUE(error.fix().starts_with("convert the file: iconv")) << error.fix();
}

TEST_F(Csv, ColumnsAreLimited) {
  const auto header = [](size_t columns) { return std::string(columns - 1, ',') + "\n"; };
  const size_t most = ReadLimits().columns;
  EXPECT_EQ(read(header(most)), Rows{});
  const DataError error = failure(header(most + 1));
  EXPECT_EQ(error.message(), "cannot read: the header names more than 10000 columns");
  EXPECT_EQ(error.fix(), "keep the columns that data.fields or the format names");
}

TEST_F(Csv, AFileWithoutAHeaderIsAnError) {
  for (const char* text : {"", "\n\n"}) {
    const DataError error = failure(text);
    EXPECT_EQ(error.where(), file_.string());
    EXPECT_TRUE(error.message().starts_with("cannot read: ")) << error.message();
  }
}

TEST_F(Csv, ACutCompressedFileIsAnError) {
  const std::string bytes = gzipped("a,b\n1,2\n");
  write_bytes(file_, bytes.substr(0, bytes.size() - 3));
  expect_damaged(failure_of([&] { rows_of(*read_csv(file_, Compression::kGzip, ',')); }), file_);
}

}  // namespace
}  // namespace sftrun::arrow_readers
