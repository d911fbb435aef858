#include "sftrun/data/input_records.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/data/sequence.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

class InputRecords : public ::testing::Test {
 protected:
  std::vector<InputRecord> read(const std::string& content, const std::string& name) {
    write_file_atomically(dir_ / name, content);
    return read_input_records((dir_ / name).string(), /*num_threads=*/2);
  }
  test::TemporaryDirectory dir_;
};

TEST_F(InputRecords, KeepTheFilesOwnLines) {
  const auto lines = read("{\"a\":  1.50, \"b\": 1e2}\r\n\n  {\"a\": \"\\u00e9\"}  \n", "a.jsonl");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].line, "{\"a\":  1.50, \"b\": 1e2}");
  EXPECT_EQ(lines[1].line, "{\"a\": \"\\u00e9\"}");
  EXPECT_EQ(lines[1].where, (dir_ / "a.jsonl").string() + ":3");
  const auto array = read("[{\"a\":  1.50}\n,\n{\"a\":\n 2.50}]", "a.json");
  ASSERT_EQ(array.size(), 2U);
  EXPECT_EQ(array[0].line, "{\"a\":  1.50}");
  EXPECT_EQ(array[1].line, "{\"a\":2.50}");  // stands on two lines
  EXPECT_TRUE(read("", "a.jsonl").empty());
}

TEST_F(InputRecords, OfTablesAreRowsAsJson) {
  const auto rows = read("prompt,messages\n\"a, b\",\"[{\"\"role\"\": \"\"user\"\"}]\"\n", "a.csv");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].line, R"({"prompt":"a, b","messages":"[{\"role\": \"user\"}]"})");
  EXPECT_EQ(rows[0].record["messages"], Json::parse(R"([{"role": "user"}])"));
  EXPECT_EQ(rows[0].where, (dir_ / "a.csv").string() + ", row 1");
}

TEST_F(InputRecords, OfPlainTextAreItsLines) {
  const auto lines = read("one\n\n two\n", "a.txt");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].line, R"({"text":" two"})");
}

TEST_F(InputRecords, OfFoldersAndPatternsAreThoseOfTheirFiles) {
  const std::filesystem::path folder = dir_ / "set";
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "train-00001.jsonl", "{\"text\": \"b\"}\n");
  write_file_atomically(folder / "train-00000.jsonl", "{\"text\": \"a\"}\n");
  write_file_atomically(folder / "test.jsonl", "{\"text\": \"c\"}\n");
  const auto texts = [](const config::DataSource& source) {
    std::string all;
    for (const InputRecord& record : read_input_records(source, 1))
      all += record.record["text"].get<std::string>();
    return all;
  };
  config::DataSource source;
  source.path = folder.string();
  EXPECT_EQ(texts(source), "ab") << "its training split";
  source.split = "test";
  EXPECT_EQ(texts(source), "c");
  source.split = "validation";
  test::expect_error<DataError>([&] { read_input_records(source, 1); }, {"validation"});
  source.split.clear();
  source.path = (folder / "t*.jsonl").string();
  EXPECT_EQ(texts(source), "cab") << "a pattern names all that match";
  source.path = (folder / "x*.jsonl").string();
  test::expect_error<DataError>([&] { read_input_records(source, 1); }, {"x*.jsonl"});
}

/// Commands have no data.fields.
TEST(InputRecordsAdvice, LeavesOutSettings) {
  const auto fix_of = [](const std::string& fix) {
    try {
      try {
        throw DataError("a message", "f:1", fix);
      } catch (const DataError& error) {
        rethrow_without_settings(error);
      }
    } catch (const DataError& error) {
      EXPECT_EQ(error.message(), "a message");
      EXPECT_EQ(error.where(), "f:1");
      return error.fix();
    }
    return std::string();
  };
  EXPECT_EQ(fix_of("write the text in quotes"), "write the text in quotes");
  EXPECT_EQ(fix_of("correct the record, or set data.format; all records of a file have one format"),
            "correct the record; all records of a file have one format");
  EXPECT_EQ(fix_of("known: human; gpt; others by data.fields: {roles: {GPT: assistant}}"),
            "known: human; gpt");
  EXPECT_EQ(fix_of("name the columns: data.fields: {prompt: a}; known: \"text\""),
            "known: \"text\"");
  EXPECT_NE(
      fix_of("set train.objective: dpo; or data.fields: {text: chosen}").find("no data.fields"),
      std::string::npos);
}

/// What to write, as a command says it.
TEST(InputRecordsAdvice, SaysWhichKeysToWrite) {
  const auto expect = [](const Json& record, const std::string& fix) {
    test::expect_error<DataError>([&] { detect_input_format(record, "f:1"); }, {"f:1", fix});
  };
  expect({{"id", 1}, {"question", "q"}, {"answer", "a"}},
         R"(rename "question" to "prompt" and "answer" to "completion"; known: "messages")");
  expect({{"prompt", "q"}, {"response", "a"}}, R"(rename "response" to "completion"; known)");
  expect({{"prompt", "q"}}, R"(add the answer as "completion"; known)");
  expect({{"instruction", "q"}, {"output", nullptr}}, R"(add the answer as "output"; known)");
  expect({{"content", "t"}}, R"(rename "content" to "text"; known)");
  const Json turns = {{{"from", "human"}, {"value", "q"}}};
  expect({{"dialogue", turns}}, R"(rename "dialogue" to "messages"; known)");
  expect({{"dialogue", turns.dump()}}, R"(rename "dialogue" to "messages"; known)");
  expect({{"a", "1"}, {"b", "2"}}, R"(rename the keys; known: "messages")");
  expect({{"a;b", "1;2"}}, "separated by `;`");
}

TEST(InputRecordsAdvice, TakesTwoAnswersApart) {
  const Json messages = {{{"role", "user"}, {"content", "q"}}};
  const auto expect = [](const Json& record, const std::string& form) {
    test::expect_error<DataError>([&] { detect_input_format(record, "f:1"); },
                                  {"two answers", "write a record for each answer: " + form});
  };
  expect({{"prompt", "p"}, {"chosen", "a"}, {"rejected", "b"}},
         R"({"prompt": …, "completion": …})");
  expect({{"chosen", messages}, {"rejected", messages}}, R"({"messages": […]})");
  expect({{"chosen", "a"}, {"rejected", "b"}}, R"({"text": …})");
}

TEST_F(InputRecords, ADirectoryIsNone) {
  test::expect_error<DataError>([&] { read_input_records(dir_.path().string(), 1); },
                                {"this is a directory", "name one of its files"});
}

}  // namespace
}  // namespace sftrun::data
