#include "../../src/engine/environment.h"

#include <gtest/gtest.h>

#include "data/toy_model.h"
#include "sftrun/core/error.h"
#include "support/expect_error.h"

/// Its program is asked in tests/smoke/rollouts.py.
namespace sftrun::engine {
namespace {

std::vector<int32_t> between(const char* chat_template, const OutsideTurn& turn, int32_t stop,
                             std::optional<bool> chat = std::nullopt) {
  const data::TextModel text = test::toy_model(chat_template);
  config::RunConfig config;
  config.train.rollouts.environment = "cat";
  config.train.rollouts.chat = chat;
  return Environment(config, text, {}).tokens_between(turn, stop);
}

std::vector<int32_t> tokens_of(const std::string& text) {
  return test::toy_model(test::kChatMl).tokenizer->encode(text, /*add_special_tokens=*/false);
}

TEST(Environment, TurnsAreWrittenByTheTemplate) {
  const auto text = "\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(between(test::kChatMl, {.role = "tool", .content = "4"}, test::kImEnd), tokens_of(text))
      << "the model has written the end of its turn";
  EXPECT_EQ(between(test::kChatMl, {.role = "tool", .content = "4"}, test::kEos),
            tokens_of(std::string("<|im_end|>") + text))
      << "it ended its turn otherwise";
  EXPECT_EQ(between(test::kChatMl, {.role = "user", .content = "and now?"}, test::kImEnd),
            tokens_of("\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"));
}

TEST(Environment, TextsGoOnAsTheyAre) {
  EXPECT_EQ(between(test::kChatMl, {.content = "= 4\n"}, test::kEos, false), tokens_of("= 4\n"));
  EXPECT_EQ(between("", {.content = "= 4\n"}, test::kEos), tokens_of("= 4\n"));
}

TEST(Environment, ARoleThatTheTemplateRefusesIsNamed) {
  constexpr const char* kStrict =
      "{%- for message in messages -%}{%- if message.role == 'tool' -%}"
      "{{ raise_exception('no tools here') }}{%- endif -%}"
      "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>' }}"
      "{%- endfor -%}";
  test::expect_error<DataError>([&] { between(kStrict, {.content = "4"}, test::kImEnd); },
                                {"cannot write a turn of tool", "no tools here"});
}

}  // namespace
}  // namespace sftrun::engine
