#include "sftrun/data/input_records.h"

#include <gtest/gtest.h>

#include "record.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "sftrun/data/record_error.h"
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

TEST_F(InputRecords, AreWrittenForAnotherFolder) {
  write_file_atomically(dir_ / "a.png", "x");
  const std::string same = (dir_ / "out.jsonl").string(),
                    other = (dir_ / "o" / "out.jsonl").string();
  std::filesystem::create_directories(dir_ / "o");
  const std::string file = (std::filesystem::canonical(dir_.path()) / "a.png").string();
  const Json additions = {{"generated", "g"}};
  const auto record = read(
      R"({"n": 1.50, "image": "a.png", "x": "a.png", "messages": [{"role": "user", "content": [{"type": "image", "path": "a.png"}, {"type": "text", "text": "a.png"}]}]})",
      "a.jsonl")[0];
  EXPECT_EQ(output_line(record, additions, same),
            record.line.substr(0, record.line.size() - 1) + R"(, "generated":"g"})");
  const std::string moved = output_line(record, additions, other);
  const Json written = Json::parse(moved);
  EXPECT_NE(moved.find("1.50"), std::string::npos);
  EXPECT_EQ(written["image"], file);
  EXPECT_EQ(written["x"], "a.png");
  EXPECT_EQ(written["messages"][0]["content"][0]["path"], file);
  EXPECT_EQ(written["messages"][0]["content"][1]["text"], "a.png");
  EXPECT_EQ(written["generated"], "g");
  EXPECT_EQ(output_line(record, additions, "-"), moved);
  const auto kept = [&](const Json& value) {
    const auto of = read(Json({{"image", value}}).dump(), "b.jsonl")[0];
    return Json::parse(output_line(of, {}, other))["image"];
  };
  for (const Json& value : {Json("none.png"), Json("data:image/png;base64,AA=="), Json("/a/b.png"),
                            Json({{"bytes", "AAAA"}}), Json("https://example.com/a.png")})
    EXPECT_EQ(kept(value), value);
  EXPECT_EQ(kept({{"path", "a.png"}, {"bytes", nullptr}}),
            Json({{"path", file}, {"bytes", nullptr}}));
}

TEST_F(InputRecords, OfTablesHaveTheirBytesAsBase64) {
  InputRecord record{.line = R"({"image":{"bytes":"<3 bytes>"}})",
                     .record = {{"image", {{"bytes", json_of_bytes("\xFF\xD8x")}, {"path", "p"}}},
                                {"others", {json_of_bytes("\xFF")}}},
                     .where = "a.parquet, row 1",
                     .folder = dir_.path()};
  const Json written =
      Json::parse(output_line(record, {{"generated", "g"}}, (dir_ / "out.jsonl").string()));
  EXPECT_EQ(written, Json({{"image", {{"bytes", "/9h4"}, {"path", "p"}}},
                           {"others", {{{"bytes", "/w=="}}}},
                           {"generated", "g"}}));
}

TEST_F(InputRecords, WithImagesThatAreNotReadAreWarnedOf) {
  const auto warning = [&](const std::string& lines) {
    return unread_images_warning(read(lines, "a.jsonl"));
  };
  const std::string unread = R"({"prompt": "q", "picture": "a.png"})"
                             "\n";
  const std::string said = warning(R"({"prompt": "q"})"
                                   "\n" +
                                   unread + unread);
  EXPECT_NE(said.find("\"picture\", which seems to hold images and is not read (2): "),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("a.jsonl:2"), std::string::npos) << said;
  EXPECT_EQ(warning(unread + R"({"prompt": "q", "images": ["a.png"]})"), "");
  EXPECT_EQ(warning(R"({"prompt": "q", "picture": "a"})"), "");
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
  const auto fixes_of = [](const auto& read) {
    try {
      read();
    } catch (const RecordError& error) {
      const DataError without = error.without_settings();
      EXPECT_EQ(without.message(), error.message());
      EXPECT_EQ(without.where(), "f:1");
      EXPECT_NE(error.fix(), without.fix());
      return std::pair(error.fix(), without.fix());
    }
    ADD_FAILURE() << "no error";
    return std::pair(std::string(), std::string());
  };
  const auto fixes_of_turn = [&](const Json& turn) {
    return fixes_of([&] { require_messages(Json::array({turn}), "messages", "f:1"); });
  };
  const auto fixes_of_shape = [&](const Json& record, RecordFormat format) {
    return fixes_of([&] { shape_of(record, format, {}, "f:1"); });
  };
  const std::string write = R"(write {"role": "user", "content": "…"})";
  EXPECT_EQ(fixes_of_turn({{"user", "a"}}).second, write);
  EXPECT_EQ(fixes_of_turn({{"from", "human"}, {"value", "a"}}).second,
            write +
                "; or, as turns of \"from\" and \"value\" are ShareGPT's, call the list "
                "\"conversations\"");
  EXPECT_EQ(fixes_of_turn({{"role", "user"}, {"text", "a"}}),
            std::pair(std::string("call it \"content\", or set data.fields: {content: text}"),
                      std::string("call it \"content\"")));
  EXPECT_EQ(fixes_of_shape({{"a", "b"}}, RecordFormat::kText).second,
            "correct the record; all records of a file have one format");
  const auto role = fixes_of_shape({{"conversations", {{{"from", "GPT4"}, {"value", "a"}}}}},
                                   RecordFormat::kShareGpt);
  EXPECT_NE(role.first.find("others by data.fields: {roles:"), std::string::npos) << role.first;
  EXPECT_TRUE(role.second.ends_with("function_response")) << role.second;
  EXPECT_NE(fixes_of_shape({{"chosen", "a"}, {"rejected", "b"}}, RecordFormat::kText)
                .second.find("no data.fields"),
            std::string::npos);
}

/// What to write, as a command says it.
TEST(InputRecordsAdvice, SaysWhichKeysToWrite) {
  const auto expect = [](const Json& record, const std::string& fix) {
    test::expect_error<DataError>([&] { detect_input_format(record, "f:1"); }, {"f:1", fix});
  };
  expect({{"id", 1}, {"question", "q"}, {"answer", "a"}},
         R"(rename "question" to "instruction" and "answer" to "output" (the model's chat )"
         R"(template, if it has one), or rename "question" to "prompt" and "answer" to )"
         R"("completion" (raw text); known: "messages")");
  expect({{"prompt", "q"}, {"response", "a"}},
         R"(or rename "response" to "completion" (raw text); known)");
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
  expect({{"chosen", messages}, {"rejected", messages}, {"messages", messages}},
         R"({"messages": […]}; or, to have the rest of the record read, remove the two)");
}

TEST_F(InputRecords, ADirectoryIsNone) {
  test::expect_error<DataError>([&] { read_input_records(dir_.path().string(), 1); },
                                {"this is a directory", "name one of its files"});
}

}  // namespace
}  // namespace sftrun::data
