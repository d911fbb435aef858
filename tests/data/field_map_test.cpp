#include "field_map.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"

namespace sftrun::data {
namespace {

using config::RecordFormat;

Json apply(const Json& fields, const Json& record, RecordFormat format = RecordFormat::kAuto) {
  return FieldMap(fields, format).apply(record, "f:1").record;
}

TEST(FieldMap, RenamesColumns) {
  EXPECT_EQ(apply({{"prompt", "question"}, {"completion", "answer"}},
                  {{"id", 1}, {"question", "q"}, {"answer", "a"}}),
            Json({{"id", 1}, {"prompt", "q"}, {"completion", "a"}}));
  EXPECT_EQ(apply({{"prompt", "completion"}, {"completion", "prompt"}},
                  {{"prompt", "a"}, {"completion", "q"}}),
            Json({{"prompt", "q"}, {"completion", "a"}}))
      << "swapped";
  EXPECT_EQ(apply(Json::object(), {{"text", "t"}}), Json({{"text", "t"}}));
}

TEST(FieldMap, DotsSelectInsideAColumn) {
  const Json record = {{"answers", {{"text", {"first", "second"}}}}, {"a.b", "whole"}};
  const Json mapped = apply({{"completion", "answers.text.1"}, {"prompt", "a.b"}}, record);
  EXPECT_EQ(mapped["completion"], "second");
  EXPECT_EQ(mapped["prompt"], "whole");
  EXPECT_THROW(apply({{"completion", "answers.text.2"}}, record), DataError);
  EXPECT_THROW(apply({{"completion", "answers.text.-1"}}, record), DataError);
  EXPECT_THROW(apply({{"completion", "answers.text.x"}}, record), DataError);
}

TEST(FieldMap, KeepsTheValuesOfImages) {
  const Json picture = {{"bytes", json_of_bytes("\x89PNG")}, {"path", nullptr}};
  EXPECT_EQ(apply({{"images", "picture"}}, {{"picture", picture}, {"text", "t"}}),
            Json({{"text", "t"}, {"images", picture}}));
  EXPECT_EQ(apply({{"images", "picture"}}, {{"picture", "a.png"}, {"image", "b.png"}}),
            Json({{"images", "a.png"}}))
      << "a column of another name for the same is not read";
  EXPECT_EQ(apply({{"videos", "clip"}}, {{"clip", {"1.png"}}, {"video", 3}}),
            Json({{"videos", {"1.png"}}}));
  EXPECT_EQ(apply({{"features", "a.b"}}, {{"a", {{"b", "x.npy"}}}})["features"], "x.npy");
  EXPECT_EQ(apply({{"images", ""}}, {{"images", "a.png"}, {"text", "t"}}), Json({{"text", "t"}}));
  const MappedRecord without =
      FieldMap({{"images", "picture"}}, RecordFormat::kAuto).apply({{"text", "t"}}, "f:1");
  EXPECT_EQ(without.record, Json({{"text", "t"}}));
  EXPECT_EQ(without.absent, std::vector<std::string>{"images: picture"});
}

/// `data.format` need not say that they are ShareGPT's.
TEST(FieldMap, RolesAreThoseOfTurnsFromSomebodyToo) {
  const Json turns = {{{"from", "GPT"}, {"value", "a"}}},
             mapped = {{{"from", "assistant"}, {"value", "a"}}};
  for (const RecordFormat format : {RecordFormat::kAuto, RecordFormat::kShareGpt})
    EXPECT_EQ(apply({{"roles", {{"GPT", "assistant"}}}}, {{"conversations", turns}}, format),
              Json({{"conversations", mapped}}));
}

/// Also turns behind a prompt, and an answer that is one message.
TEST(FieldMap, RenamesTurnsWhereverTheyAre) {
  const Json fields = {{"role", "from"}, {"content", "value"}, {"roles", {{"gpt", "assistant"}}}};
  const Json turn = {{"from", "gpt"}, {"value", "a"}},
             message = {{"role", "assistant"}, {"content", "a"}};
  EXPECT_EQ(apply(fields, {{"prompt", {turn}}, {"completion", {turn}}}),
            Json({{"prompt", {message}}, {"completion", {message}}}));
  EXPECT_EQ(apply(fields, {{"prompt", {turn}}, {"chosen", turn}, {"rejected", turn}}),
            Json({{"prompt", {message}}, {"chosen", message}, {"rejected", message}}));
}

/// Of conversations of any form; another key of that name is replaced.
TEST(FieldMap, RenamesFlagsOfTurns) {
  const Json fields = {{"train", "training"}, {"weight", "loss_weight"}};
  EXPECT_EQ(apply(fields, {{"messages", {{{"role", "user"}, {"training", false}}}}})["messages"][0],
            Json({{"role", "user"}, {"train", false}}));
  EXPECT_EQ(apply(fields, {{"conversations", {{{"from", "gpt"}, {"loss_weight", 0}}}}},
                  RecordFormat::kShareGpt)["conversations"][0],
            Json({{"from", "gpt"}, {"weight", 0}}));
  EXPECT_EQ(apply(fields, {{"chosen", {{"train", true}, {"training", false}}}})["chosen"],
            Json({{"train", false}}));
}

TEST(FieldMap, NumbersAreTexts) {
  EXPECT_EQ(apply({{"completion", "label"}}, {{"label", 3}})["completion"], "3");
  EXPECT_EQ(apply({{"completion", "label"}}, {{"label", true}})["completion"], "true");
  // As the file has them.
  for (const std::string number : {"12345678901234567890123", "4.50", "1e5", "-0.0", "1e+22"}) {
    const Json record = parse_json_line(R"({"label": )" + number + ", \"n\": [4.50]}", "f:1");
    const Json mapped = apply({{"completion", "label"}}, record);
    EXPECT_EQ(mapped["completion"], number);
    EXPECT_EQ(mapped["n"][0], 4.5);
    EXPECT_EQ(apply({{"completion", "a.0"}}, {{"a", Json::array({record["label"]})}})["completion"],
              number);
  }
  // As Python writes them, of a table.
  EXPECT_EQ(apply({{"completion", "label"}}, {{"label", 1e15}})["completion"],
            "1000000000000000.0");
}

TEST(FieldMap, CellsOfTextHoldJson) {
  const auto of_csv = [](const Json& fields, const Json& record) {
    return FieldMap(fields, RecordFormat::kAuto)
        .apply(record, "f:1", /*has_text_cells=*/true)
        .record;
  };
  const std::string user = R"([{"role": "user", "content": "q"}])";
  const Json list = Json::parse(user);
  EXPECT_EQ(of_csv({{"prompt", "p"}}, {{"p", user}, {"completion", user}}),
            Json({{"completion", list}, {"prompt", list}}));
  EXPECT_EQ(of_csv({}, {{"prompt", user}, {"chosen", user}, {"rejected", user}}),
            Json({{"prompt", list}, {"chosen", list}, {"rejected", list}}));
  EXPECT_EQ(of_csv({{"role", "who"}}, {{"prompt", R"([{"who": "user"}])"},
                                       {"completion", R"([{"who": "bot"}])"}})["completion"][0],
            Json({{"role", "bot"}}));
  EXPECT_EQ(of_csv({}, {{"messages", user}}), Json({{"messages", list}}));
  EXPECT_EQ(of_csv({{"completion", "answers.text.0"}},
                   {{"answers", R"({"text": [12345678901234567890123]})"}})["completion"],
            "12345678901234567890123");
  // Texts that stay texts.
  const Json texts = {{"prompt", "[1, 2]"}, {"completion", user}};
  EXPECT_EQ(of_csv({}, texts), texts);
  EXPECT_EQ(apply(Json::object(), {{"prompt", user}, {"completion", user}}),
            Json({{"prompt", user}, {"completion", user}}));
}

TEST(FieldMap, MissingColumns) {
  try {
    apply({{"prompt", "question"}}, {{"query", "q"}});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(
        error.message(),
        "the record has no \"question\", which data.fields maps to prompt (its keys: \"query\")");
    EXPECT_EQ(error.where(), "f:1");
  }
  EXPECT_EQ(apply({{"input", "context"}}, {{"x", 1}}), Json({{"x", 1}})) << "may be missing";
}

TEST(FieldMap, AnEmptyNameLeavesOutAColumn) {
  EXPECT_EQ(apply({{"input", ""}, {"instruction", "q"}}, {{"q", "a"}, {"input", "b"}}),
            Json({{"instruction", "a"}}));
  EXPECT_EQ(apply({{"tools", ""}}, {{"messages", Json::array()}, {"", 1}}),
            Json({{"messages", Json::array()}, {"", 1}}));
}

// The file's own column of the name is another one, also where the mapped column has no value.
TEST(FieldMap, AMappedNameIsNotReadFromTheColumnOfThatName) {
  const Json record = {{"instruction", "q"}, {"output", "a"}, {"input", "other"}};
  EXPECT_EQ(apply({{"input", "context"}}, record), (Json{{"instruction", "q"}, {"output", "a"}}));
  Json with_null = record;
  with_null["context"] = nullptr;
  EXPECT_TRUE(apply({{"input", "context"}}, with_null).at("input").is_null());
}

TEST(FieldMap, NamesWhatTheRecordLacks) {
  const FieldMap fields({{"system", "sys"}, {"tools", ""}, {"train", "mask"}}, RecordFormat::kAuto);
  const Json turn = {{"role", "user"}, {"content", "q"}};
  const Json record = {{"messages", Json::array({turn})}};
  EXPECT_EQ(fields.apply(record, "f:1").absent,
            (std::vector<std::string>{"system: sys", "train: mask"}));
  Json whole = record;
  whole["sys"] = "s";
  whole["messages"][0]["mask"] = true;
  EXPECT_EQ(fields.apply(whole, "f:1").absent, std::vector<std::string>{});
}

TEST(FieldMap, PairsAreMappedWhole) {
  const FieldMap one({{"prompt", "question"}}, RecordFormat::kAuto);
  one.require_pairs({{"prompt", "q"}, {"completion", "a"}}, "f:1");
  one.require_pairs({{"prompt", "q"}, {"chosen", "a"}, {"rejected", "b"}}, "f:1");
  try {
    one.require_pairs(one.apply({{"question", "q"}, {"answer", "a"}}, "f:1").record, "f:1");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(error.message().find(
                  "data.fields maps prompt, but completion is neither mapped nor a column"),
              std::string::npos)
        << error.message();
    EXPECT_EQ(error.fix(), "add completion: COLUMN to data.fields");
  }
}

TEST(FieldMap, ConversationsAreMessages) {
  const Json turns = {{{"from", "human"}, {"value", "hi"}}};
  EXPECT_EQ(apply({{"conversations", "chat"}}, {{"chat", turns}})["messages"], turns);
  EXPECT_EQ(apply({{"conversations", "chat"}}, {{"chat", turns}},
                  RecordFormat::kShareGpt)["conversations"],
            turns);
  EXPECT_EQ(apply({{"messages", "messages"}}, {{"messages", turns}},
                  RecordFormat::kShareGpt)["conversations"],
            turns);
}

TEST(FieldMap, TurnsAndRoles) {
  const Json fields = {{"messages", "chat"},
                       {"role", "speaker"},
                       {"content", "says"},
                       {"roles", {{"human", "user"}, {"bot", "assistant"}}}};
  const Json turns = {{{"speaker", "human"}, {"says", "hi"}},
                      {{"speaker", "bot"}, {"says", "ho"}, {"weight", 0}},
                      {{"speaker", "system"}, {"says", "s"}}};
  EXPECT_EQ(apply(fields, {{"chat", turns}}),
            Json({{"messages",
                   {{{"role", "user"}, {"content", "hi"}},
                    {{"weight", 0}, {"role", "assistant"}, {"content", "ho"}},
                    {{"role", "system"}, {"content", "s"}}}}}));
  EXPECT_EQ(apply(fields, {{"chat", turns.dump()}})["messages"].size(), 3U) << "a text of JSON";
  EXPECT_THROW(apply(fields, {{"chat", "hello"}}), DataError);
  const Json sharegpt = apply(fields, {{"chat", turns}}, RecordFormat::kShareGpt);
  EXPECT_EQ(sharegpt["conversations"][0], Json({{"from", "user"}, {"value", "hi"}}));
}

}  // namespace
}  // namespace sftrun::data
