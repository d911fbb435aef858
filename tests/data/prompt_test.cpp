#include "sftrun/data/prompt.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "support/expect_error.h"
#include "toy_model.h"

namespace sftrun::data {
namespace {

std::string prompt_of(const std::string& json, bool chat = true,
                      const TextModel& model = test::toy_model()) {
  const auto ids = PromptBuilder(model, chat).build(Json::parse(json), "f.jsonl:3").ids;
  return model.tokenizer->decode(ids, /*skip_special_tokens=*/false);
}

constexpr const char* kQuestion =
    "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
constexpr const char* kUserTurn = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";

TEST(Prompts, ConversationsOfEveryFormatUpToTheAnswer) {
  for (const char* record :
       {R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}]})",
        R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a"}]})",
        R"({"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "q"},
            {"from": "gpt", "value": "a"}]})",
        R"({"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}],
            "completion": [{"role": "assistant", "content": "a"}]})",
        R"({"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}]})",
        R"({"instruction": "q", "system": "S", "input": ""})"}) {
    EXPECT_EQ(prompt_of(record), kQuestion) << record;
  }
  EXPECT_EQ(prompt_of(R"({"instruction": "do", "input": "q", "output": "a"})"),
            "<|im_start|>user\ndo\n\nq<|im_end|>\n<|im_start|>assistant\n");
}

TEST(Prompts, StringsAreATurnWhenChatting) {
  EXPECT_EQ(prompt_of(R"({"prompt": "q"})"), kUserTurn);
  EXPECT_EQ(prompt_of(R"({"prompt": "q", "completion": "a"})"), kUserTurn);
  EXPECT_EQ(prompt_of(R"({"prompt": "q", "completion": null})", /*chat=*/false), "q");
  EXPECT_EQ(prompt_of(R"({"text": "q"})"), "q");
  EXPECT_EQ(prompt_of(R"({"instruction": "do", "input": "q"})", /*chat=*/false), "do\n\nq\n\n");
  EXPECT_EQ(prompt_of(R"({"text": "q"})", true, test::toy_model(test::kChatMl, /*adds_bos=*/true)),
            "<s>q");
}

TEST(Prompts, OnlyConversationsAreRendered) {
  const auto renders = [](const std::string& json, bool chat) {
    return PromptBuilder(test::toy_model(), chat).renders(Json::parse(json), "f.jsonl:3");
  };
  for (const bool chat : {true, false}) {
    EXPECT_TRUE(renders(R"({"messages": [{"role": "user", "content": "q"}]})", chat));
    EXPECT_TRUE(renders(R"({"prompt": [{"role": "user", "content": "q"}]})", chat));
    EXPECT_EQ(renders(R"({"prompt": "q"})", chat), chat);
    EXPECT_EQ(renders(R"({"instruction": "q"})", chat), chat);
    EXPECT_FALSE(renders(R"({"text": "q"})", chat));
  }
}

TEST(Prompts, ATextGoesOnAndBeginsOnce) {
  const auto model = test::toy_model(test::kChatMl, /*adds_bos=*/true, /*adds_eos=*/true);
  EXPECT_EQ(prompt_of(R"({"text": "q"})", true, model), "<s>q");
  EXPECT_EQ(prompt_of(R"({"prompt": "q"})", false, model), "<s>q");
  EXPECT_EQ(prompt_of(R"({"prompt": "q"})", true, model), kUserTurn);
  test::expect_error<DataError>([&] { prompt_of(R"({"text": "<s>q"})", true, model); },
                                {"begins with <s> twice", "the tokenizer adds one"});
}

TEST(Prompts, ToolsAndTemplateVariablesAreTheRecords) {
  const auto model = test::toy_model("{{ tools | length }} {{ extra }} {{ messages[0].content }}");
  EXPECT_EQ(prompt_of(R"({"prompt": [{"role": "user", "content": [{"type": "text", "text": "q"}]}],
                          "tools": [{}, {}], "chat_template_kwargs": {"extra": "x"}})",
                      true, model),
            "2 x q");
}

TEST(Prompts, ReportsTheLineOfARecordWithoutAPrompt) {
  const auto fails = [](const char* record, std::initializer_list<std::string> parts) {
    test::expect_error<DataError>([&] { prompt_of(record); }, parts);
  };
  fails(R"({"question": "q"})", {"has no prompt", "\"question\"", "f.jsonl:3", "\"instruction\""});
  fails(R"({"prompt": null})", {"has no prompt; its keys: none", "rename the keys; known"});
  fails(R"({"question": "q", "answer": "a"})", {R"(rename "question" to "prompt"; known)"});
  fails(R"({"chosen": "a", "rejected": "b"})", {R"({"prompt": "…"})"});
  fails(R"({"chosen": [{}], "rejected": []})", {R"({"prompt": [{"role": "user")"});
  fails(R"({"prompt": 1})", {"must be a string or a list of messages", "in quotes"});
  fails(R"({"prompt": 1234567890123456789012})",
        {"must be a string or a list of messages, not number"});
  fails(R"({"messages": []})", {"is empty", "f.jsonl:3"});
  fails(R"({"conversations": [{"from": "alien", "value": "q"}]})", {"not a known role"});
  test::expect_error<DataError>(
      [] {
        prompt_of(R"({"messages": [{"role": "user", "content": "q"}]})", false,
                  test::toy_model(""));
      },
      {"no chat template", "f.jsonl:3"});
}

}  // namespace
}  // namespace sftrun::data
