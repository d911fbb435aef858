#include "sftrun/data/json_lines.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"

namespace sftrun::data {
namespace {

struct Failure {
  std::string message, where, fix;
};

template <typename Action>
Failure failure_of(const Action& action) {
  try {
    action();
  } catch (const DataError& error) {
    return {error.message(), error.where(), error.fix()};
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(JsonLines, MalformedJsonNamesLineAndColumn) {
  const Failure failure = failure_of([] { parse_json_line(R"({"text": "a" "b"})", "f.jsonl:7"); });
  EXPECT_EQ(failure.where, "f.jsonl:7:16");  // the end of what stands where ',' or '}' belongs
  EXPECT_TRUE(failure.message.starts_with("malformed JSON: ")) << failure.message;
  EXPECT_EQ(failure.message.find("json.exception"), std::string::npos) << failure.message;
}

// What Python's json.dumps writes, and its json.loads reads.
TEST(JsonLines, ExplainsPythonsExtensionsOfJson) {
  for (const char* line : {R"({"a": NaN})", R"({"a": Infinity})", R"({"a": -Infinity})"}) {
    const Failure failure = failure_of([&] { parse_json_line(line, "f.jsonl:7"); });
    EXPECT_NE(failure.fix.find("allow_nan=False"), std::string::npos) << line << failure.fix;
  }
  for (const char* line : {R"({"a": "\ud83d"})", R"({"a": "\ud83d x"})", R"({"a": "\udc4d"})"}) {
    const Failure failure = failure_of([&] { parse_json_line(line, "f.jsonl:7"); });
    EXPECT_NE(failure.fix.find("surrogatepass"), std::string::npos) << line << failure.fix;
  }
  EXPECT_EQ(failure_of([] { parse_json_line(R"({"a": Nope})", "f.jsonl:7"); }).fix,
            "correct this record, or remove it");
  EXPECT_EQ(failure_of([] { parse_json_line(R"({"a": 1} {"a": 2})", "f.jsonl:7"); }).fix,
            "write one JSON object per line");
}

TEST(JsonLines, NumbersAreKept) {
  const Json record = parse_json_line(R"({"x": 12345678901234567890123, "y": 4.50})", "f:1");
  EXPECT_EQ(to_json_text(record), R"({"x":12345678901234567890123,"y":4.50})");
  EXPECT_EQ(to_json_text(parse_json_text("[12345678901234567890123, 4.50]")),
            "[12345678901234567890123,4.5]");
}

/// A double would hold infinity, as in Python. The message shows only the beginning of a long one.
TEST(JsonLines, NumbersBeyondADoubleAreRefused) {
  for (const std::string& number : {std::string("1e400"), std::string(20'000, '7')}) {
    const Failure failure =
        failure_of([&] { parse_json_line("{\"a\": [" + number + "]}", "f.jsonl:7"); });
    EXPECT_TRUE(failure.message.starts_with("the number " + number.substr(0, 5)));
    EXPECT_LT(failure.message.size(), 400U);
    EXPECT_EQ(failure.where, "f.jsonl:7");
    EXPECT_NE(failure.fix.find("as a string"), std::string::npos);
    EXPECT_TRUE(parse_json_text(number).is_discarded());
  }
}

TEST(JsonLines, ExtendingALineKeepsItsNumbers) {
  const std::string line = R"({"x": 12345678901234567890123, "y": 4.50, "z": null})";
  const Json record = parse_json_line(line, "f:1");
  EXPECT_EQ(extend_json_line(line, record, {{"new", 1}}),
            R"({"x": 12345678901234567890123, "y": 4.50, "z": null, "new":1})");
  EXPECT_EQ(extend_json_line(line, record, {{"z", 1}}),
            R"({"x":12345678901234567890123,"y":4.50,"z":1})");
}

// The JSON parser takes a NUL for the end of its input.
TEST(JsonLines, RefusesTextAfterANul) {
  using namespace std::string_view_literals;
  const Failure failure =
      failure_of([] { parse_json_line("{\"text\": \"a\"}\0\"b\"}"sv, "f.jsonl:2"); });
  EXPECT_EQ(failure.where, "f.jsonl:2:14");
  EXPECT_EQ(failure.message, "malformed JSON: a NUL byte");
}

/// What copies or prints such a value would call itself for each level.
TEST(JsonLines, DeepNestingIsRefused) {
  const auto nested = [](size_t levels) {
    return std::string(levels, '[') + R"("]]\"]")" + std::string(levels, ']');
  };
  EXPECT_TRUE(parse_json_line(R"({"a": )" + nested(511) + "}", "f:1").contains("a"));
  for (const size_t levels : {size_t{512}, size_t{1'000'000}}) {
    const Failure failure =
        failure_of([&] { parse_json_line(R"({"a": )" + nested(levels) + "}", "f.jsonl:3"); });
    EXPECT_EQ(failure.message, "JSON nested deeper than 512 levels");
    EXPECT_EQ(failure.where, "f.jsonl:3");
    EXPECT_TRUE(parse_json_text(nested(levels + 1)).is_discarded());
  }
  EXPECT_TRUE(parse_json_text(nested(512)).is_array());
}

TEST(JsonLines, ARecordOverSeveralLinesGetsAHint) {
  EXPECT_NE(failure_of([] { parse_json_line("{", "f:1"); }).fix.find("jq -c ."), std::string::npos);
  EXPECT_NE(failure_of([] { parse_json_line("{\"a\": 1,", "f:1"); }).fix.find("jq -c ."),
            std::string::npos);
  EXPECT_NE(failure_of([] {
              parse_json_line("{\"a\": [1", "f:1", NextLine::kOther);
            }).fix.find("jq -c ."),
            std::string::npos);
}

/// jq does not read a damaged file.
TEST(JsonLines, ARecordThatIsCutOffIsNotToBeConverted) {
  using namespace std::string_view_literals;
  const auto fix_of = [](std::string_view line, NextLine next) {
    return failure_of([&] { parse_json_line(line, "f:1", next); }).fix;
  };
  for (const std::string_view line :
       {"{\"a\": "sv, "{\"a\": ["sv, "{\"a\": 1,"sv, "{\"a"sv, "{\"a\": \"b"sv, "{\"a\": tr"sv,
        "{\"a\": \"caf\xC3"sv, "{\"a\": \"\xE2\x82"sv}) {
    EXPECT_EQ(fix_of(line, NextLine::kNone),
              "the file ends within this record: write or copy it again, or remove its last line")
        << line;
    EXPECT_EQ(fix_of(line, NextLine::kRecord),
              "the record is cut off: complete it, or remove its line")
        << line;
  }
  EXPECT_EQ(
      fix_of("{\"a\": \"b", NextLine::kOther),
      "a text continues in the next line: write its line breaks as \\n, and the record on one "
      "line");
  EXPECT_NE(fix_of("{\"a\": \"caf\xE9\"}", NextLine::kNone).find("iconv"), std::string::npos);
}

TEST(JsonLines, ACommaBehindARecordGetsAHint) {
  EXPECT_NE(failure_of([] { parse_json_line("{\"a\": 1},", "f:1"); }).fix.find("remove the comma"),
            std::string::npos);
}

TEST(JsonLines, InvalidUtf8NamesTheByte) {
  EXPECT_EQ(failure_of([] { parse_json_line("{\"t\": \"\xE9t\xE9\"}", "f:3"); }).where, "f:3:8");
  EXPECT_EQ(failure_of([] { parse_json_line("{\"t\": \"\xC3\xA9\xFF\"}", "f:3"); }).where,
            "f:3:10");
  EXPECT_EQ(failure_of([] { parse_json_line("\xC3", "f:3"); }).where, "f:3:1");
}

TEST(JsonLines, OnlyObjectsAreRecords) {
  EXPECT_NE(failure_of([] { parse_json_line("3", "f:1"); }).message.find("not number"),
            std::string::npos);
  EXPECT_NE(failure_of([] { parse_json_line("\"a\"", "f:1"); }).message.find("not string"),
            std::string::npos);
  EXPECT_EQ(failure_of([] { parse_json_line("{\"x\": 1e999}", "f:1"); }).where, "f:1");
}

TEST(JsonLines, ValuesAreToldHowToBecomeRecords) {
  const auto fix = [](const char* value, NextLine next = NextLine::kRecord) {
    return failure_of([&] { parse_json_line(value, "f:1", next); }).fix;
  };
  EXPECT_EQ(fix(R"("a")"),
            "write each text as {\"text\": …}: jq -c '{text: .}' in.jsonl > out.jsonl");
  EXPECT_EQ(fix(R"("a")", NextLine::kNoLine),
            "write each text as {\"text\": …}: jq -c '.[] | {text: .}' in.json > out.jsonl");
  EXPECT_EQ(fix(R"([{"role": "user", "content": "a"}])"),
            "write each conversation as {\"messages\": […]}: jq -c '{messages: .}' in.jsonl > "
            "out.jsonl");
  EXPECT_EQ(fix(R"([{"from": "human", "value": "a"}])", NextLine::kNoLine),
            "write each conversation as {\"conversations\": […]}: jq -c '.[] | {conversations: .}' "
            "in.json > out.jsonl");
  EXPECT_EQ(fix(R"(["a", "b"])"),
            "name the values; a question and its answer: jq -c '{prompt: .[0], completion: .[1]}' "
            "in.jsonl > out.jsonl");
  EXPECT_EQ(fix(R"([{"text": "a"}, {"text": "b"}])"),
            "write one JSON object per line: jq -c '.[]' in.jsonl > out.jsonl");
  for (const char* value : {"3", "true", "null", "[]", R"(["a"])"}) {
    EXPECT_EQ(fix(value), "write one JSON object per line, such as {\"text\": …}") << value;
    EXPECT_EQ(fix(value, NextLine::kNoLine),
              "write JSON objects into the array, such as {\"text\": …}")
        << value;
  }
}

TEST(JsonLines, ExtendingCopiesTheLine) {
  const std::string line = R"({"z": 1.50, "text":"é\u00e9", "n": 123456789012345678901 })";
  EXPECT_EQ(extend_json_line(line, parse_json_line(line, ""), {{"input_ids", {1, 2}}}),
            R"({"z": 1.50, "text":"é\u00e9", "n": 123456789012345678901, "input_ids":[1,2]})");
  EXPECT_EQ(extend_json_line("{ }", Json::object(), {{"a", 1}}), R"({"a":1})");
}

TEST(JsonLines, ExtendingReplacesAKeyInItsPlace) {
  const std::string line = R"({"a": 1, "input_ids": [9], "b": 2})";
  EXPECT_EQ(extend_json_line(line, parse_json_line(line, ""), {{"input_ids", {1}}, {"c", 3}}),
            R"({"a":1,"input_ids":[1],"b":2,"c":3})");
}

}  // namespace
}  // namespace sftrun::data
