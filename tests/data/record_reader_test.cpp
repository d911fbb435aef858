#include "sftrun/data/record_reader.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "sftrun/core/rng.h"
#include "sftrun/core/strings.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

class RecordReaders : public ::testing::Test {
 protected:
  struct Found {
    int64_t number;
    Json record;
    bool operator==(const Found&) const = default;
  };
  std::vector<Found> read(const std::string& content, const std::string& name = "a.json") {
    write_file_atomically(dir_ / name, content);
    const auto reader = open_records(dir_ / name);
    std::vector<Found> found;
    while (const auto block = reader->next()) {
      EXPECT_GT(block->size(), 0U);
      for (size_t i = 0; i < block->size(); ++i)
        found.push_back({block->number(i), block->parse(i, "here")});
    }
    return found;
  }
  DataError failure(const std::string& content, const std::string& name = "a.json") {
    try {
      read(content, name);
    } catch (const DataError& error) {
      return error;
    }
    ADD_FAILURE() << "no error for " << content;
    return DataError("");
  }
  test::TemporaryDirectory dir_;
};

TEST_F(RecordReaders, Lines) {
  const auto found = read("\xEF\xBB\xBF{\"a\": 1}\r\n\n  \t{\"a\": 2}  \n{\"a\": 3}");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0], (Found{1, {{"a", 1}}}));
  EXPECT_EQ(found[1], (Found{3, {{"a", 2}}}));
  EXPECT_EQ(found[2], (Found{4, {{"a", 3}}}));
  EXPECT_TRUE(read("").empty());
  EXPECT_TRUE(read(" \n\n").empty());
}

TEST_F(RecordReaders, AnArrayIsReadElementByElement) {
  const auto found =
      read("\n [\n{\"a\": \"]},\\\"[\"},\n {\"b\": [1, {\"c\": \"\\\\\"}]\n},{}]\n\n");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0], (Found{3, {{"a", "]},\"["}}}));
  EXPECT_EQ(found[1].number, 4);
  EXPECT_EQ(found[1].record, Json({{"b", Json::array({1, {{"c", "\\"}}})}}));
  EXPECT_EQ(found[2], (Found{5, Json::object()}));
  EXPECT_TRUE(read("[]").empty());
  EXPECT_TRUE(read("[ ] ").empty());
}

TEST_F(RecordReaders, AnArrayMayBeginBehindMuchSpace) {
  for (const std::string mark : {"", "\xEF\xBB\xBF"}) {
    const auto found = read(mark + std::string(3 << 20, '\n') + "[{\"a\": 1},\n{\"a\": 2}]");
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[1].number, (3 << 20) + 2);
  }
}

TEST_F(RecordReaders, BrokenArraysAreRefused) {
  EXPECT_EQ(failure("[{\"a\": 1}\n,").message(), "the JSON array is not closed");
  EXPECT_TRUE(failure("[{\"a\": 1}\n,").where().ends_with("a.json:2"));
  EXPECT_EQ(failure("[").message(), "the JSON array is not closed");
  EXPECT_EQ(failure("[{\"a\": \"]").message(), "the JSON array is not closed");
  EXPECT_EQ(failure("[{}] {}").message(), "text follows the end of the JSON array");
  EXPECT_EQ(failure("[{},,{}]").message(), "an element of the JSON array is missing");
  EXPECT_EQ(failure("[{},]").message(), "an element of the JSON array is missing");
  EXPECT_EQ(failure("[}]").message(), "one closing bracket too many");
  EXPECT_NE(failure("[1]").message().find("must be a JSON object"), std::string::npos);
}

TEST_F(RecordReaders, ElementsThatAreNoObjectsAreRefused) {
  EXPECT_EQ(failure("[\"a\",\n\"b\"]").message(),
            "the JSON array has an element of type string; each record must be a JSON object");
  const auto fix = [&](const char* text) { return failure(text).fix(); };
  EXPECT_NE(fix("[\"a\"]").find("jq -c '.[] | {text: .}' in.json"), std::string::npos);
  EXPECT_NE(fix("[[\"q\", \"a\"]]").find("{prompt: .[0], completion: .[1]}"), std::string::npos);
  EXPECT_NE(fix("\"a\"\n\"b\"\n").find("jq -c '{text: .}' in.jsonl"), std::string::npos);
}

/// A list as the first line is a bad record, as everywhere; an array has no other lines behind it.
TEST_F(RecordReaders, LinesMayBeginWithAList) {
  for (const std::string first : {"[]", "[1, \"]\", {\"a\": []}]", "\n [ ] "}) {
    write_file_atomically(dir_ / "a.jsonl", first + "\r\n\n{\"a\": 1}\n{\"a\": 2}\n");
    const auto reader = open_records(dir_ / "a.jsonl");
    const auto block = reader->next();
    ASSERT_EQ(block->size(), 3U) << first;
    EXPECT_THROW(block->parse(0, "here"), DataError);
    EXPECT_EQ(block->parse(2, "here"), Json({{"a", 2}}));
  }
  EXPECT_EQ(read("[{\"a\": 1}]\n\n").size(), 1U);
  EXPECT_EQ(read("[{\"a\": 1},\n{\"a\": 2}]").size(), 2U);
  EXPECT_EQ(read("[{\"a\": [\n]}]").size(), 1U);
}

/// Lines of text may begin with a bracket.
TEST_F(RecordReaders, LinesOfText) {
  const auto lines = [&](const std::string& content, LineForm form) {
    write_file_atomically(dir_ / "a.txt", content);
    std::vector<std::string> texts;
    const auto reader = open_records(dir_ / "a.txt", form);
    while (const auto block = reader->next()) {
      for (size_t i = 0; i < block->size(); ++i)
        texts.push_back(block->parse(i, "here").at("text").get<std::string>());
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  for (const std::string first :
       {"[Verse 1]", "[1] Introduction", "{curly} words", "[", "{", "[]", "{\"text\": \"a\"}"}) {
    EXPECT_EQ(lines(first + "\nHello\n", LineForm::kText), (Texts{first, "Hello"}));
  }
  EXPECT_EQ(lines("[Verse 1]\nHello\n", LineForm::kEither), (Texts{"[Verse 1]", "Hello"}));
  EXPECT_EQ(lines("{ curly }\n", LineForm::kEither), (Texts{"{ curly }"}));
  EXPECT_EQ(lines("{ \"text\": \"a\"}\n", LineForm::kEither), (Texts{"a"}));
  EXPECT_EQ(lines("[\n{\"text\": \"a\"}]\n", LineForm::kEither), (Texts{"a"}));
  EXPECT_TRUE(lines("\n\n", LineForm::kText).empty());
}

/// numbers.jsonl is what Python's json writes of the rows that pyarrow reads
/// (scripts/fixtures/make_records.py).
TEST_F(RecordReaders, TablesGiveTheRecordsOfTheirJsonLines) {
  for (const std::string name : {"numbers.parquet", "numbers.arrow"}) {
    const auto lines =
        split(read_text_file(SFTRUN_TEST_DATA "/records/" + name.substr(0, name.find('.')) +
                             (name.ends_with("arrow") ? "_arrow.jsonl" : ".jsonl")),
              '\n');
    const auto reader = open_records(SFTRUN_TEST_DATA "/records/" + name);
    size_t row = 0;
    while (const auto block = reader->next()) {
      for (size_t i = 0; i < block->size(); ++i, ++row)
        EXPECT_EQ(to_json_text(block->parse(i, "here")), lines.at(row)) << name;
    }
    EXPECT_EQ(row + 1, lines.size()) << name;
  }
}

/// Files that lie: tests/data/records, which scripts/fixtures/make_records.py writes.
TEST_F(RecordReaders, ArrowFilesAreNotTrusted) {
  const auto failure_of_file = [&](const std::string& name) {
    return failure(read_text_file(SFTRUN_TEST_DATA "/records/" + name), name);
  };
  for (const char* name : {"bad_offset.arrow", "bad_index.arrow"}) {
    const DataError error = failure_of_file(name);
    EXPECT_TRUE(error.message().starts_with("cannot read: ")) << error.message();
    EXPECT_TRUE(error.where().ends_with(name));
  }
  EXPECT_EQ(failure_of_file("bytes.arrow").message(), "a text is not valid UTF-8");
  EXPECT_EQ(read(read_text_file(SFTRUN_TEST_DATA "/records/stream.arrow"), "a.arrow").size(), 3U);
}

/// Which of the two is meant nobody can know.
TEST_F(RecordReaders, TablesWithAColumnTwiceAreRefused) {
  const auto expect_refused = [](const DataError& error, const char* message, const char* file) {
    EXPECT_EQ(error.message(), message);
    EXPECT_TRUE(error.where().ends_with(file)) << error.where();
    EXPECT_EQ(error.fix(), "rename one of them, or remove it");
  };
  for (const char* name : {"two_columns.parquet", "two_columns.arrow"})
    expect_refused(failure(read_text_file(SFTRUN_TEST_DATA "/records/" + std::string(name)), name),
                   "two columns are named `text`", name);
  expect_refused(failure(read_text_file(SFTRUN_TEST_DATA "/records/two_fields.arrow"), "f.arrow"),
                 "two fields of the column `turns` are named `role`", "f.arrow");
  expect_refused(failure("text,id,text\nx,1,y\n", "a.csv"), "two columns are named `text`",
                 "a.csv");
  expect_refused(failure("text\tid\ttext\nx\t1\ty\n", "a.tsv"), "two columns are named `text`",
                 "a.tsv");
  // Of spreadsheets with empty cells to the right
  EXPECT_EQ(read("text,id,,\nx,1,,\n", "a.csv")[0].record["text"], "x");
  // Names are compared as they are.
  EXPECT_EQ(read("text, text,Text\nx,y,z\n", "a.csv")[0].record.size(), 3U);
  EXPECT_EQ(read("{\"text\": \"x\", \"text\": \"y\"}")[0].record["text"], "y");
}

/// Records of every length around the reader's own sizes, as lines and as an array.
TEST_F(RecordReaders, DoNotDependOnBlockSizes) {
  RandomStream random(1, 0);
  std::vector<Json> records;
  std::string lines, array = "[";
  for (int i = 0; i < 60; ++i) {
    std::string text(random.next_below(400'000), 'x');
    for (char& c : text) c = "ab\"\\[]{},\n"[random.next_below(10)];
    records.push_back({{"i", i}, {"text", text}});
    lines += records.back().dump() + "\n";
    array += (i > 0 ? ",\n" : "") + records.back().dump();
  }
  for (const std::string& content : {lines, array + "]"}) {
    const auto found = read(content);
    ASSERT_EQ(found.size(), records.size());
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(found[i].number, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(found[i].record, records[i]);
    }
  }
}

/// Text that has no end, or one at `size`.
class LongStream final : public ByteStream {
 public:
  LongStream(std::string head, char rest, uint64_t size = UINT64_MAX)
      : head_(std::move(head)), rest_(rest), size_(size) {}
  size_t read(char* buffer, size_t size) override {
    size = std::min<uint64_t>(size, size_ - position_);
    for (size_t i = 0; i < size; ++i, ++position_)
      buffer[i] = position_ < head_.size() ? head_[position_] : rest_;
    return size;
  }
  uint64_t file_position() const override { return position_; }

 private:
  std::string head_;
  char rest_;
  uint64_t size_, position_ = 0;
};

constexpr ReadSizes kSmall{.read_bytes = 1 << 10,
                           .block_bytes = 4 << 10,
                           .limits = {.record_bytes = 1 << 20, .blank_bytes = 2 << 20}};

std::string refusal_of(std::string head, char rest) {
  try {
    const auto reader = read_json_records(std::make_unique<LongStream>(std::move(head), rest),
                                          "bomb", LineForm::kEither, kSmall);
    while (reader->next()) {
    }
  } catch (const DataError& error) {
    return error.message() + " at " + error.where();
  }
  return "none";
}

TEST_F(RecordReaders, RefusesEndlessRecords) {
  EXPECT_EQ(refusal_of("{\"text\": \"", 'a'), "a record of more than 1 MiB at bomb:1");
  EXPECT_EQ(refusal_of("{}\n{}\n{\"text\": \"", 'a'), "a record of more than 1 MiB at bomb:3");
  EXPECT_EQ(refusal_of("a line of text\n", 'a'), "a record of more than 1 MiB at bomb:2");
  EXPECT_EQ(refusal_of("[{}, {\"text\": \"", 'a'), "a record of more than 1 MiB at bomb:1");
  EXPECT_EQ(refusal_of("", '\n'), "more than 2 MiB of empty lines, and no record at bomb:1");
  EXPECT_EQ(refusal_of("\xEF\xBB\xBF", ' '),
            "more than 2 MiB of empty lines, and no record at bomb:1");
  EXPECT_NE(refusal_of("{}\n", '\n').find("more than 2 MiB of empty lines, and no record at bomb:"),
            std::string::npos);
}

TEST_F(RecordReaders, ReadsRecordsWithinTheLimits) {
  const auto reader = read_json_records(std::make_unique<LongStream>("{}\n", '\n', 1 << 20), "long",
                                        LineForm::kJson, kSmall);
  const auto block = reader->next();
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->size(), 1U);
  EXPECT_EQ(reader->next(), nullptr);
}

TEST_F(RecordReaders, ObjectsOfTooManyKeysAreRefused) {
  std::string keys = "{\"k\": 1";
  for (int i = 0; i < 50'000; ++i) keys += ", \"" + std::to_string(i) + "\": 1";
  EXPECT_EQ(failure(keys + "}").message(), "a JSON object of too many keys");
}

TEST_F(RecordReaders, ErrorsQuoteLittleOfALongLine) {
  const DataError error = failure("{\"text\": \"" + std::string(5'000'000, 'a'));
  EXPECT_LT(error.message().size(), 400U);
  EXPECT_NE(error.message().find("malformed JSON"), std::string::npos);
}

TEST_F(RecordReaders, TablesOfTooManyColumnsAreRefused) {
  const auto row = [](int count) {
    std::string text = "x0";
    for (int i = 1; i < count; ++i) text += ",x" + std::to_string(i);
    return text + "\n";
  };
  EXPECT_EQ(read(row(1000) + row(1000), "a.csv").size(), 1U);
  EXPECT_NE(failure(row(20'000) + row(20'000), "a.csv")
                .message()
                .find("the header names more than 10000 columns"),
            std::string::npos);
}

TEST_F(RecordReaders, ReportsFilesThatAreNotTables) {
  EXPECT_EQ(failure("version https://git-lfs", "a.parquet").message(),
            "this is not a parquet file");
  EXPECT_EQ(failure("{}", "a.arrow").message(), "this is not a arrow file");
  EXPECT_NE(failure("PAR1, and then not", "a.parquet").message().find("cannot read: "),
            std::string::npos);
  EXPECT_NE(failure("\x1f\x8b, and then not", "a.jsonl.gz").message().find("cannot read: "),
            std::string::npos);
}

using namespace std::string_literals;

// Both hold {"a":1} and a newline.
const std::string kGzip =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x4a\x54\xb2\x32\xac\xe5\x02\x00\x46\xa3\xe8\x74\x08\x00\x00\x00"s;
const std::string kZstd = "\x28\xb5\x2f\xfd\x00\x48\x41\x00\x00\x7b\x22\x61\x22\x3a\x31\x7d\x0a"s;

TEST_F(RecordReaders, GzipMembersAndTheirPadding) {
  const std::string padding(1000, '\0');
  EXPECT_EQ(read(kGzip, "a.jsonl.gz"), (std::vector<Found>{{1, {{"a", 1}}}}));
  EXPECT_EQ(read(kGzip + padding, "a.jsonl.gz").size(), 1U);
  EXPECT_EQ(read(kGzip + kGzip + padding + kGzip, "a.jsonl.gz").size(), 3U);
  EXPECT_EQ(read(kGzip + std::string(1 << 17, '\0') + kGzip, "a.jsonl.gz").size(), 2U);
  EXPECT_NE(failure(kGzip + "garbage", "a.jsonl.gz").message().find("cannot read: "),
            std::string::npos);
  for (size_t size = 2; size < kGzip.size(); ++size) {
    EXPECT_NE(failure(kGzip.substr(0, size), "a.jsonl.gz").message().find("cannot read: "),
              std::string::npos)
        << size;
  }
}

TEST_F(RecordReaders, ZstandardFrames) {
  const std::string skippable = "\x5a\x2a\x4d\x18\x04\x00\x00\x00size"s;
  EXPECT_EQ(read(kZstd + kZstd, "a.jsonl.zst"),
            (std::vector<Found>{{1, {{"a", 1}}}, {2, {{"a", 1}}}}));
  EXPECT_EQ(read(skippable + kZstd + skippable + kZstd, "a.jsonl.zst").size(), 2U);  // as of pzstd
  EXPECT_EQ(read(kZstd + skippable, "a.jsonl.zst").size(), 1U);
  EXPECT_NE(failure(skippable + kZstd.substr(0, 9), "a.jsonl.zst").message().find("cannot read: "),
            std::string::npos);
}

TEST_F(RecordReaders, CommaSeparatedValues) {
  const auto found = read("id,text\n007,\"a \"\"b\"\",\nc\"\n,\n", "a.csv");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0], (Found{1, {{"id", "007"}, {"text", "a \"b\",\nc"}}}));
  EXPECT_EQ(found[1], (Found{2, {{"id", ""}, {"text", ""}}}));
  EXPECT_EQ(read("a\tb\nx,y\tz\n", "a.tsv")[0], (Found{1, {{"a", "x,y"}, {"b", "z"}}}));
  const DataError ragged = failure("a,b\n1,2\n1,2,3\n", "a.csv");
  EXPECT_NE(ragged.message().find("expected 2 columns, got 3: 1,2,3"), std::string::npos)
      << ragged.message();
  EXPECT_NE(ragged.fix().find("quote fields"), std::string::npos);
  const DataError open = failure("a,b\n1,\"x\n\"\n\n2,say \"\n3,\"y\n4,z\n", "a.csv");
  EXPECT_EQ(open.message(),
            "cannot read: the quote that row 3 opens is not closed before the file ends");
  EXPECT_NE(open.fix().find("close the quote"), std::string::npos);
  EXPECT_NE(failure("\xEF\xBB\xBF\"a\",b\n1,\"2\n", "a.csv").message().find("row 1 opens"),
            std::string::npos);
  EXPECT_NE(failure("\"a,b\n1,2\n", "a.csv")
                .message()
                .find("the quote that the header opens is not closed"),
            std::string::npos);
  EXPECT_NE(failure("a\n\xff\xfe\n", "a.csv").fix().find("iconv"), std::string::npos);
}

/// Rows of another number of columns are records that cannot be read, each at its place.
TEST_F(RecordReaders, JsonIsNoTable) {
  const auto expect_refused = [](const DataError& error, const char* message, const char* fix) {
    EXPECT_NE(error.message().find(message), std::string::npos) << error.message();
    EXPECT_EQ(error.fix(), fix);
  };
  for (const char* text :
       {"{\"a\": \"b\"}\n", "\xEF\xBB\xBF{\"a\": 1}\n", "[{\"a\": 1}]", "{\n  \"a\": 1\n}"})
    expect_refused(failure(text, "a.csv"), "holds JSON", "rename it to a.jsonl");
  expect_refused(failure("{\"a\": 1}\n", "b.tsv"), "holds JSON", "rename it to b.jsonl");
  EXPECT_EQ(read("[a],{b}\n1,2\n", "c.csv").size(), 1U) << "names of columns";
}

TEST_F(RecordReaders, BadRowsOfCommaSeparatedValues) {
  const auto rows = [&](const std::string& content) {
    write_file_atomically(dir_ / "a.csv", content);
    const auto reader = open_records(dir_ / "a.csv");
    std::string found;
    while (const auto block = reader->next()) {
      for (size_t i = 0; i < block->size(); ++i) {
        found += std::to_string(block->number(i)) + ":";
        try {
          found += block->parse(i, "w").value("a", "none") + " ";
        } catch (const DataError& error) {
          found += "bad ";
        }
      }
    }
    return found;
  };
  EXPECT_EQ(rows("a,b\n1\nx,y\n1,2,3\nz,\"\n\"\n\nu,v\n,,,\n"), "1:bad 2:x 3:bad 4:z 5:u 6:bad ");
  EXPECT_EQ(rows("a,b\n1\n2\n"), "1:bad 2:bad ");
  std::string many = "a,b\n", wanted;
  for (int i = 1; i <= 5000; ++i) {
    many += i % 1000 == 0 ? "x\n" : "x,y\n";
    wanted += std::to_string(i) + (i % 1000 == 0 ? ":bad " : ":x ");
  }
  EXPECT_EQ(rows(many), wanted);
}

TEST_F(RecordReaders, ANulByteIsDamage) {
  const std::string nul(1, '\0');
  EXPECT_EQ(failure("a,b\n1,2\n3,\"x" + nul + "\"\n", "a.csv").message(),
            "cannot read: row 2 holds a NUL byte");
  EXPECT_EQ(failure("a" + nul + ",b\n1,2\n", "a.csv").message(),
            "cannot read: the header holds a NUL byte");
  EXPECT_EQ(failure("a text\nan" + nul + "other\n", "a.txt").message(), "a NUL byte in the text");
}

}  // namespace
}  // namespace sftrun::data
