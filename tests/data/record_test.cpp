#include "record.h"

#include <gtest/gtest.h>

#include "formats/readers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "support/expect_error.h"
#include "unread_columns.h"

namespace sftrun::data {
namespace {

RecordShape shape(const char* json, RecordFormat format, bool has_template = true) {
  return shape_of(Json::parse(json), format, {.exists = has_template}, "f:1");
}
Conversation conversation(const char* json, RecordFormat format) {
  return std::get<Conversation>(shape(json, format));
}
PlainText plain(const char* json, RecordFormat format, bool has_template = true) {
  return std::get<PlainText>(shape(json, format, has_template));
}

void expect_error(const char* json, RecordFormat format, const std::string& part) {
  try {
    shape(json, format);
    ADD_FAILURE() << "no error for " << json;
  } catch (const DataError& error) {
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    EXPECT_EQ(error.where(), "f:1");
  }
}

TEST(RecordFormats, Detection) {
  const auto format = [](const char* json) {
    return detect_format(Json::parse(json), "f:1").format;
  };
  EXPECT_EQ(format(R"({"id": 1, "messages": []})"), RecordFormat::kMessages);
  EXPECT_EQ(format(R"({"conversations": []})"), RecordFormat::kShareGpt);
  EXPECT_EQ(format(R"({"prompt": "", "completion": ""})"), RecordFormat::kPromptCompletion);
  EXPECT_EQ(format(R"({"instruction": "", "output": "", "text": ""})"), RecordFormat::kAlpaca);
  EXPECT_EQ(format(R"({"text": ""})"), RecordFormat::kText);
  EXPECT_EQ(detect_format(Json::parse(R"({"text": ""})"), "").reason, "it has \"text\"");
}

/// Each format is found by its columns, and its reader keeps what its row says.
TEST(RecordFormats, ReadersFitTheirRows) {
  for (const config::RecordFormatInfo& info : config::kRecordFormats) {
    Json record;
    for (const std::string_view column : info.columns)
      record[column] = info.is_sampled ? Json::array({1}) : Json("t");
    const config::Objective objective = info.is_pair        ? config::Objective::kDpo
                                        : info.is_sampled   ? config::Objective::kGrpo
                                        : info.is_retrieval ? config::Objective::kEmbed
                                                            : config::Objective::kSft;
    EXPECT_EQ(detect_format(record, "f:1", objective).format, info.format);
    if (info.is_text) {
      EXPECT_FALSE(is_rendered(record, info.format, /*has_chat_template=*/true)) << info.name;
    }
    record.erase(*info.columns.begin());
    EXPECT_EQ(reason_for(info.format, record), "") << info.name;
  }
}

TEST(RecordFormats, DetectionListsTheKeys) {
  try {
    detect_format(Json::parse(R"({"question": "", "answer": ""})"), "f:1");
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(error.message().find(R"("question", "answer")"), std::string::npos)
        << error.message();
    EXPECT_NE(error.fix().find("\"messages\""), std::string::npos);
  }
}

TEST(RecordFormats, SuggestsFieldsForColumns) {
  const auto fix = [](const Json& record) -> std::string {
    try {
      detect_format(record, "f:1");
    } catch (const DataError& error) {
      return error.fix();
    }
    return "no error";
  };
  const auto expect = [&](const Json& record, const std::string& part) {
    EXPECT_NE(fix(record).find(part), std::string::npos) << fix(record);
  };
  expect({{"id", "1"}, {"question", "q"}, {"answer", "a"}},
         "data.fields: {instruction: question, output: answer} (the model's chat template, if it "
         "has one), or {prompt: question, completion: answer} (raw text);");
  expect({{"user_query", "q"}, {"Response", "a"}}, "or {prompt: user_query, completion: Response}");
  expect({{"instruction", "q"}, {"response", "a"}},
         "data.fields: {output: response} (the model's chat template, if it has one), or {prompt: "
         "instruction, completion: response}");
  expect({{"content", "t"}}, "data.fields: {text: content}");
  expect({{"The question, in short", "q"}, {"Answer \"A\"", "a"}},
         "{instruction: \"The question, in short\", output: \"Answer \\\"A\\\"\"}");
  expect({{"dialogue", {{{"role", "user"}}}}}, "data.fields: {messages: dialogue}");
  const Json answers = {{"text", {"a", "b"}}, {"answer_start", {1, 2}}};
  expect({{"context", "c"}, {"question", "q"}, {"answers", answers}},
         "{instruction: question, output: answers.text.0}");
  const Json turn = {{"speaker", "customer"}, {"utterance", "q"}};
  expect({{"dialogue", Json::array({turn})}},
         "data.fields: {messages: dialogue, role: speaker, content: utterance}");
  expect({{"dialogue", Json::array({turn}).dump()}},
         "data.fields: {messages: dialogue, role: speaker, content: utterance}");
  expect({{"x", "1"}, {"y", "2"}}, "data.fields: {instruction: COLUMN, output: COLUMN}");
  expect({{"question", "q"}, {"labels", {1, 2}}}, "data.fields: {instruction: COLUMN");
  expect({{"prompt;completion", "a;b"}}, "separated by `;`");
  expect({{"prompt\tcompletion", "a\tb"}}, "separated by tabs");
}

TEST(RecordFormats, RefusesTokenIds) {
  using enum config::Objective;
  const auto expect = [](const Json& record, config::Objective objective = kSft) {
    test::expect_error<DataError>([&] { detect_format(record, "f:1", objective); },
                                  {"the record is already tokenized", "give the text"});
  };
  const Json ids = {1, 2, 3};
  expect({{"input_ids", ids}, {"labels", ids}});
  expect({{"id", "a1"}, {"input_ids", ids.dump()}, {"labels", ids.dump()}});
  expect({{"chosen_input_ids", ids}, {"rejected_input_ids", ids}}, kDpo);
  test::expect_error<DataError>(
      [&] {
        detect_input_format({{"input_ids", ids}}, "f:1");
      },
      {"give the text"});
  test::expect_error<DataError>(
      [&] {
        shape_of({{"input_ids", ids}}, RecordFormat::kText, {}, "f:1");
      },
      {"give the text"});
  EXPECT_EQ(detect_format({{"input_ids", ids}, {"text", "t"}}, "f:1").format, RecordFormat::kText);
}

TEST(RecordFormats, SuggestsFieldsForValuesThatAreNoTexts) {
  const auto expect = [](const Json& record, RecordFormat format, const std::string& part) {
    try {
      shape_of(record, format, {}, "f:1");
      ADD_FAILURE() << "no error for " << record;
    } catch (const DataError& error) {
      EXPECT_NE(error.fix().find(part), std::string::npos) << error.fix();
    }
  };
  expect({{"prompt", "p"}, {"completion", 3}}, RecordFormat::kPromptCompletion,
         "data.fields: {completion: completion}");
  expect({{"prompt", 1}, {"completion", 3}}, RecordFormat::kPromptCompletion,
         "data.fields: {prompt: prompt, completion: completion}");
  expect(Json::parse(R"({"prompt": "p", "completion": {"text": ["a"]}})"),
         RecordFormat::kPromptCompletion, "data.fields: {completion: COLUMN.text.0}");
  expect({{"instruction", "p"}, {"output", 3}}, RecordFormat::kAlpaca,
         "data.fields: {output: output}");
}

TEST(RecordFormats, ShareGptCallsOfTools) {
  const auto answer = [](const std::string& value, bool writes_calls) {
    const Json record = {{"conversations",
                          {{{"from", "human"}, {"value", "q"}},
                           {{"from", "function_call"}, {"value", value}},
                           {{"from", "observation"}, {"value", "3"}}}}};
    const TemplateTraits traits{.writes_calls = writes_calls};
    return std::get<Conversation>(shape_of(record, RecordFormat::kShareGpt, traits, "f:1"))
        .messages[1];
  };
  const std::string call = R"({"name": "add", "arguments": {"a": 1}})";
  EXPECT_EQ(answer(call, true),
            Json::parse(R"({"role": "assistant", "content": "", "tool_calls": [{"type": "function",
                            "function": {"name": "add", "arguments": {"a": 1}}}]})"));
  EXPECT_EQ(answer("[" + call + ", " + call + "]", true)["tool_calls"].size(), 2U);
  EXPECT_EQ(answer(call, false), Json({{"role", "assistant"}, {"content", call}}));
  const std::string deep =
      R"({"name": "add", "arguments": )" + std::string(2000, '[') + std::string(2000, ']') + "}";
  for (const std::string& text :
       {std::string("I call add"), std::string("[]"), deep,
        std::string(R"({"name": 1, "arguments": {}})"), std::string("[1]"), call + '\0' + "x"})
    EXPECT_EQ(answer(text, true), Json({{"role", "assistant"}, {"content", text}})) << text;
}

TEST(RecordFormats, ShareGptTurnsUnderMessages) {
  const Json record = Json::parse(
      R"({"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})");
  EXPECT_EQ(detect_format(record, "f:1").format, RecordFormat::kShareGpt);
  const auto shape = std::get<Conversation>(shape_of(record, RecordFormat::kShareGpt, {}, "f:1"));
  EXPECT_EQ(shape.messages[1]["role"], "assistant");
  try {
    shape_of(record, RecordFormat::kMessages, {}, "f:1");
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_EQ(error.message(),
              "messages[0] is not a message: it needs a \"role\" (its keys: \"from\", \"value\")");
    EXPECT_NE(error.fix().find("data.format: sharegpt"), std::string::npos) << error.fix();
  }
}

TEST(RecordFormats, MisspeltContentIsNamed) {
  try {
    shape(R"({"messages": [{"role": "user", "contents": "a"}]})", RecordFormat::kMessages);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_EQ(error.message(), "messages[0] has no \"content\" (its keys: \"role\", \"contents\")");
    EXPECT_NE(error.fix().find("data.fields: {content: contents}"), std::string::npos);
  }
  try {
    shape(R"({"messages": [{"role": "user", "from": "human", "value": "a"}]})",
          RecordFormat::kMessages);
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(error.fix().find("data.fields: {content: value}"), std::string::npos);
  }
  shape(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]})",
      RecordFormat::kMessages);
}

TEST(RecordFormats, MistakesComeWithAFix) {
  for (const auto& [json, format] :
       {std::pair{R"({"messages": []})", RecordFormat::kMessages},
        std::pair{R"({"prompt": "a", "completion": null})", RecordFormat::kPromptCompletion},
        std::pair{R"({"conversations": [{"from": "ai", "value": "b"}]})",
                  RecordFormat::kShareGpt}}) {
    try {
      shape(json, format);
      FAIL() << "no error for " << json;
    } catch (const DataError& error) {
      EXPECT_NE(error.fix(), "") << json;
    }
  }
}

/// What a remedy says is what works.
TEST(RecordFormats, AnUnknownRoleComesWithItsMapping) {
  for (const auto& [role, fix] :
       {std::pair{"GPT", "data.fields: {roles: {GPT: assistant}}"},
        std::pair{"Human", "data.fields: {roles: {Human: user}}"},
        std::pair{"asistant", "data.fields: {roles: {asistant: assistant}}"},
        std::pair{"Q: it's", "data.fields: {roles: {'Q: it''s': ROLE}}, where ROLE is user"}}) {
    const std::string json =
        std::string(R"({"conversations": [{"from": ")") + role + R"(", "value": "x"}]})";
    try {
      shape(json.c_str(), RecordFormat::kShareGpt);
      ADD_FAILURE() << role;
    } catch (const DataError& error) {
      EXPECT_NE(error.fix().find(fix), std::string::npos) << error.fix();
    }
  }
}

TEST(RecordFormats, MessagesKeepTheirKeysInOrder) {
  const auto c = conversation(
      R"({"messages": [{"role": "user", "content": "", "z": 1, "a": 2}], "tools": [{"name": "f"}],
          "chat_template_kwargs": {"enable_thinking": false}})",
      RecordFormat::kMessages);
  EXPECT_EQ(c.messages.dump(), R"([{"role":"user","content":"","z":1,"a":2}])");
  EXPECT_EQ(c.num_prompt_messages, 0U);
  EXPECT_EQ(c.tools.size(), 1U);
  EXPECT_EQ(c.kwargs["enable_thinking"], false);
}

TEST(RecordFormats, ToolsMayBeAString) {
  EXPECT_EQ(
      conversation(
          R"({"messages": [{"role": "user", "content": "q"}], "tools": "[{\"name\": \"f\"}]"})",
          RecordFormat::kMessages)
          .tools[0]["name"],
      "f");
  // Cells of a table that are empty.
  const auto c = conversation(
      R"({"messages": [{"role": "user", "content": "q"}], "tools": "", "chat_template_kwargs": " "})",
      RecordFormat::kMessages);
  EXPECT_TRUE(c.tools.is_null());
  EXPECT_TRUE(c.kwargs.empty());
  EXPECT_EQ(
      conversation(
          R"({"messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": "{\"a\": 1}"})",
          RecordFormat::kMessages)
          .kwargs["a"],
      1);
}

TEST(RecordFormats, ShareGptRoles) {
  const auto c = conversation(
      R"({"system": "S", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0},
          {"from": "observation", "value": "c"}, {"role": "user", "content": "d"}]})",
      RecordFormat::kShareGpt);
  EXPECT_EQ(c.messages,
            Json::parse(R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                                        {"role": "assistant", "content": "b", "weight": 0},
                                        {"role": "tool", "content": "c"}, {"role": "user", "content": "d"}])"));
}

TEST(RecordFormats, PromptCompletion) {
  const auto strings =
      plain(R"({"prompt": "p ", "completion": "c"})", RecordFormat::kPromptCompletion);
  EXPECT_EQ(strings.prompt, "p ");
  EXPECT_EQ(strings.completion, "c");
  const auto lists = conversation(
      R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
          "completion": [{"role": "assistant", "content": "a"}]})",
      RecordFormat::kPromptCompletion);
  EXPECT_EQ(lists.messages.size(), 3U);
  EXPECT_EQ(lists.num_prompt_messages, 2U);
}

TEST(RecordFormats, AlpacaWithAndWithoutTemplate) {
  const char* record = R"({"instruction": "Add.", "input": "1 2", "output": "3"})";
  EXPECT_EQ(
      conversation(record, RecordFormat::kAlpaca).messages,
      Json::parse(
          R"([{"role": "user", "content": "Add.\n\n1 2"}, {"role": "assistant", "content": "3"}])"));
  const char* only_input = R"({"instruction": "", "input": "1 2", "output": "3"})";
  EXPECT_EQ(conversation(only_input, RecordFormat::kAlpaca).messages[0]["content"], "1 2");
  EXPECT_EQ(plain(only_input, RecordFormat::kAlpaca, false).prompt, "1 2\n\n");
  const auto text = plain(record, RecordFormat::kAlpaca, /*has_template=*/false);
  EXPECT_EQ(text.prompt, "Add.\n\n1 2\n\n");
  EXPECT_EQ(text.completion, "3");
  EXPECT_EQ(
      plain(R"({"instruction": "Hi", "input": "", "output": "Ho"})", RecordFormat::kAlpaca, false)
          .prompt,
      "Hi\n\n");
  EXPECT_EQ(plain(R"({"instruction": "Hi", "output": "Ho"})", RecordFormat::kAlpaca, false).prompt,
            "Hi\n\n");
}

TEST(RecordFormats, Errors) {
  using enum RecordFormat;
  expect_error(R"({"text": "a"})", kMessages,
               "no \"messages\", which data.format messages requires (its keys: \"text\")");
  expect_error(R"({"messages": "a"})", kMessages, "must be a list of messages, not string");
  expect_error(R"({"messages": []})", kMessages, "is empty");
  expect_error(R"({"messages": [{"role": "user", "content": "q"}, {"content": "x"}]})", kMessages,
               "messages[1] is not a message");
  expect_error(R"({"messages": [{"role": 3}]})", kMessages, "messages[0] is not a message");
  expect_error(R"({"messages": [{"role": "user", "content": 3}]})", kMessages,
               "messages[0].content must be");
  expect_error(R"({"messages": [{"role": "user", "content": "q"}], "tools": {"a": 1}})", kMessages,
               "\"tools\" must be");
  expect_error(R"({"messages": [{"role": "user", "content": "q"}], "tools": "oops"})", kMessages,
               "\"tools\" must be");
  expect_error(R"({"messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": 1})",
               kMessages, "must be an object");
  expect_error(R"({"conversations": [{"from": "alien", "value": "x"}]})", kShareGpt,
               "\"alien\", which is not a known role");
  expect_error(R"({"conversations": [{"from": "GPT", "value": "x"}]})", kShareGpt,
               "\"GPT\", which is not a known role");
  expect_error(R"({"conversations": [{"from": "human"}]})", kShareGpt, "conversations[0] needs");
  expect_error(R"({"conversations": {}})", kShareGpt, "must be a list, not object");
  expect_error(R"({"prompt": "p"})", kPromptCompletion, "no \"completion\"");
  expect_error(R"({"prompt": "p", "completion": [{"role": "assistant"}]})", kPromptCompletion,
               "two strings or two lists");
  expect_error(R"({"instruction": 1, "output": ""})", kAlpaca,
               "\"instruction\" must be a string, not number");
  expect_error(R"({"instruction": "", "input": [], "output": ""})", kAlpaca,
               "\"input\" must be a string, not array");
  expect_error(R"({"messages": [{"role": "user", "content": null}]})", kMessages,
               "messages[0].content is null, and the message has no tool_calls");
  expect_error(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": []}]})",
               kMessages, "messages[0].content is null");
  expect_error(R"({"messages": [{"role": "assistant"}]})", kMessages,
               "messages[0] has neither \"content\" nor \"tool_calls\"");
  expect_error(R"({"text": null})", kText, "\"text\" must be a string, not null");
}

TEST(RecordFormats, ToolsAndKwargsMayBeTexts) {  // as in a CSV file
  const auto with = [](const std::string& tools, const std::string& kwargs) {
    const Json record = {{"messages", Json::array({{{"role", "user"}, {"content", "q"}}})},
                         {"tools", tools},
                         {"chat_template_kwargs", kwargs}};
    return conversation(record.dump().c_str(), RecordFormat::kMessages);
  };
  EXPECT_TRUE(with("", " ").tools.is_null());
  EXPECT_EQ(with("", " ").kwargs, Json::object());
  EXPECT_EQ(with(R"([{"x": 12345678901234567890}])", "").tools[0]["x"], 12345678901234567890U);
  EXPECT_EQ(with("", R"({"a": null, "b": 1})").kwargs, Json({{"b", 1}}));
  EXPECT_THROW(with("{}", ""), DataError);
  EXPECT_THROW(with("", "[]"), DataError);
}

/// What `datasets` writes as JSON has every key in every record.
TEST(RecordFormats, NullIsMissing) {
  const auto c = conversation(
      R"({"messages": [{"role": "user", "content": "q", "weight": null, "train": null, "name": null},
            {"role": "assistant", "content": "a", "weight": null, "tool_calls": null}],
          "conversations": null, "tools": null, "system": null,
          "chat_template_kwargs": {"enable_thinking": null, "x": 1}})",
      RecordFormat::kMessages);
  EXPECT_EQ(c.messages.size(), 2U);
  EXPECT_TRUE(c.tools.is_null());
  EXPECT_EQ(c.kwargs, Json({{"x", 1}}));
  const auto of_sharegpt = conversation(
      R"({"conversations": [{"from": "human", "value": "q", "role": null, "weight": null},
            {"from": "gpt", "value": "a", "train": null, "content": null}], "messages": null})",
      RecordFormat::kShareGpt);
  EXPECT_EQ(of_sharegpt.messages.dump(),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");
  const auto format = [](const char* json) {
    return detect_format(Json::parse(json), "f:1").format;
  };
  EXPECT_EQ(format(R"({"messages": null, "conversations": []})"), RecordFormat::kShareGpt);
  EXPECT_EQ(format(R"({"messages": null, "prompt": null, "completion": null, "text": ""})"),
            RecordFormat::kText);
  EXPECT_EQ(format(R"({"instruction": "", "output": "", "prompt": null, "completion": "",
                       "chosen": null, "rejected": null})"),
            RecordFormat::kAlpaca);
}

TEST(RecordFormats, RecognisesPreferenceData) {
  for (const auto& [json, fix] :
       {std::pair{R"({"prompt": "p", "chosen": "a", "rejected": "b"})",
                  "data.fields: {prompt: prompt, completion: chosen}"},
        std::pair{R"({"prompt": [], "chosen": [{"role": "assistant"}], "rejected": []})",
                  "data.fields: {prompt: prompt, completion: chosen}"},
        std::pair{
            R"({"prompt": "q", "chosen": [{"role": "user", "content": "q"}], "rejected": []})",
            "data.fields: {messages: chosen}"},
        std::pair{R"({"chosen": [{"role": "user", "content": "q"}], "rejected": []})",
                  "data.fields: {messages: chosen}"},
        std::pair{R"({"chosen": "a", "rejected": "b"})", "data.fields: {text: chosen}"}}) {
    try {
      detect_format(Json::parse(json), "f:1");
      ADD_FAILURE() << json;
    } catch (const DataError& error) {
      EXPECT_NE(error.message().find("preference data"), std::string::npos) << error.message();
      EXPECT_NE(error.fix().find("set train.objective: dpo"), std::string::npos) << error.fix();
      EXPECT_NE(error.fix().find(fix), std::string::npos) << error.fix();
    }
  }
  expect_error(R"({"prompt": "p", "chosen": "a", "rejected": "b"})",
               RecordFormat::kPromptCompletion, "preference data");
  EXPECT_EQ(detect_format(Json::parse(R"({"messages": [], "chosen": "a", "rejected": "b"})"), "f:1")
                .format,
            RecordFormat::kMessages);
}

TEST(RecordFormats, ColumnsThatAreNotReadAreFound) {
  const auto unread = [](const char* json, RecordFormat format) {
    const Json record = Json::parse(json);
    return join(unread_columns(record, format, shape_of(record, format, {}, "f:1")), " ");
  };
  using enum RecordFormat;
  EXPECT_EQ(
      unread(R"({"instruction": "i", "output": "o", "history": [["a", "b"]], "id": 3})", kAlpaca),
      "history");
  EXPECT_EQ(unread(R"({"instruction": "i", "output": "o", "history": [], "system": "s"})", kAlpaca),
            "");
  EXPECT_EQ(
      unread(R"({"prompt": "p", "completion": "c", "system": "s", "tools": [{}], "label": false})",
             kPromptCompletion),
      "tools system label");
  EXPECT_EQ(unread(R"({"messages": [{"role": "user", "content": "q"}], "images": ["a.png"],
                       "tools": [{"name": "f"}], "rejected": "b"})",
                   kMessages),
            "images")
      << "data.fields maps `chosen`";
  EXPECT_EQ(unread(R"({"messages": [{"role": "user", "content": "q"}], "chosen": "a",
                       "rejected": "b"})",
                   kMessages),
            "chosen rejected");
  EXPECT_EQ(unread(R"({"prompt": "p", "completion": "c", "label": true})", kPromptCompletion), "");
  EXPECT_EQ(unread(R"({"text": "t", "history": "h", "label": true})", kText), "");
}

}  // namespace
}  // namespace sftrun::data
