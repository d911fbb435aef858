#include "sftrun/templates/ollama_template.h"

#include <gtest/gtest.h>

#include <string>

#include "chat_outline.h"

/// What Go makes of these texts, Ollama's own packages among it: tests/parity/ollama_parity.py.
namespace sftrun::templates {
namespace {

OllamaTemplate made_of(const std::string& source, const std::string& added_bos = "") {
  RenderOptions options;
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  return ollama_template_of(ChatTemplate(source), options, added_bos);
}

std::string text_of(const std::string& source, const std::string& added_bos = "") {
  const OllamaTemplate made = made_of(source, added_bos);
  EXPECT_TRUE(made.text) << made.reason;
  return made.text.value_or("");
}

std::string reason_of(const std::string& source) {
  const OllamaTemplate made = made_of(source);
  EXPECT_FALSE(made.text) << *made.text;
  return made.reason;
}

constexpr const char* kRange =
    R"({{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }})";

/// ChatML, with the system prompt of its own that Qwen2.5 and SmolLM2 have.
constexpr const char* kWithDefault =
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(OllamaTemplate, OfTurnsWithADefaultSystemPrompt) {
  const std::string prompt = "{{ if eq $i 0 }}<|im_start|>system\nYou help.<|im_end|>\n{{ end }}";
  EXPECT_EQ(text_of(kWithDefault),
            kRange +
                std::string("{{ if eq .Role \"system\" }}<|im_start|>system\n"
                            "{{ .Content }}<|im_end|>\n"
                            "{{ else if eq .Role \"user\" }}") +
                prompt +
                "<|im_start|>user\n{{ .Content }}<|im_end|>\n"
                "{{ else if eq .Role \"assistant\" }}" +
                prompt +
                "<|im_start|>assistant\n{{ .Content }}{{ if not $last }}<|im_end|>\n"
                "{{ end }}{{ end }}{{ if and $last (ne .Role \"assistant\") }}"
                "<|im_start|>assistant\n{{ end }}{{ end }}");
}

/// Llama 3: BOS in front, white space off.
constexpr const char* kTrimming =
    "{{ bos_token }}{% for m in messages %}{{ '[' + m.role + ']' + m.content | trim + ';' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}";

TEST(OllamaTemplate, LeavesBosToTheRunnerThatAddsIt) {
  EXPECT_NE(text_of(kTrimming).find("<s>"), std::string::npos);
  const OllamaTemplate made = made_of(kTrimming, "<s>");
  EXPECT_EQ(made.text.value().find("<s>"), std::string::npos);
  EXPECT_TRUE(made.notes.empty());
  const OllamaTemplate without = made_of(kWithDefault, "<s>");
  ASSERT_EQ(without.notes.size(), 1U);
  EXPECT_NE(without.notes[0].find("Ollama adds <s> before every prompt"), std::string::npos);
}

TEST(OllamaTemplate, TrimsWhereTheChatTemplateDoes) {
  const std::string text = text_of(kTrimming, "<s>");
  EXPECT_TRUE(text.starts_with("{{ define \"trim\" }}"));
  EXPECT_NE(text.find("{{ define \"trim-end\" }}"), std::string::npos);
  EXPECT_EQ(text.find("{{ define \"trim-start\" }}"), std::string::npos);
  EXPECT_NE(text.find("[user]{{ template \"trim\" .Content }};"), std::string::npos);
  EXPECT_EQ(text_of(kWithDefault).find("define"), std::string::npos);
}

/// Gemma's, Llama 2's and Mistral's way.
constexpr const char* kFolding =
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif "
    "%}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<' + m.role + '>' + (system if loop.first else '') + m.content + '</>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

TEST(OllamaTemplate, FoldsASystemMessageIntoTheFirstTurn) {
  EXPECT_EQ(
      text_of(kFolding),
      kRange +
          std::string("{{ if eq .Role \"system\" }}{{ if eq $i 0 }}<user>{{ .Content }}{{ else "
                      "}}<system>{{ .Content }}</>{{ end }}"
                      "{{ else if eq .Role \"user\" }}{{ if eq $i 0 }}<user>{{ .Content }}</>"
                      "{{ else if and (eq $i 1) (eq (index $.Messages 0).Role \"system\") }}"
                      "\n\n{{ .Content }}</>{{ else }}<user>{{ .Content }}</>{{ end }}"
                      "{{ else if eq .Role \"assistant\" }}<assistant>{{ .Content }}"
                      "{{ if not $last }}</>{{ end }}{{ end }}"
                      "{{ if and $last (ne .Role \"assistant\") }}<assistant>{{ end }}{{ end }}"));
}

TEST(OllamaTemplate, EscapesTextForGoAndModelfiles) {
  const std::string text = text_of(
      "{% for m in messages %}{{ '{{ x {%\\u00a0\\t\"\"\"\"' + m.role + '{' + m.content + '\\n' }}"
      "{% endfor %}");
  EXPECT_NE(text.find(R"({{ "{" }}{ x {%{{ "\U000000a0" }}{{ "\U00000009" }}""{{ "\U00000022" }})"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(R"(user{{ "{" }}{{ .Content }})"), std::string::npos) << text;
}

TEST(OllamaTemplate, EndOfTextBehindTheLastTurnIsNotPartOfIt) {
  const std::string text = text_of(
      "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}");
  EXPECT_NE(text.find("<|user|>{{ .Content }}<|end|>{{ else"), std::string::npos) << text;
  EXPECT_NE(text.find("{{ if not $last }}<|end|>{{ end }}"), std::string::npos) << text;
}

TEST(OllamaTemplate, WithoutSystemMessagesSaysSo) {
  const OllamaTemplate made = made_of(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
      "{% endif %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}");
  ASSERT_TRUE(made.text) << made.reason;
  EXPECT_NE(made.text->find("\"system\" }}{{ else"), std::string::npos) << *made.text;
  ASSERT_EQ(made.notes.size(), 1U);
  EXPECT_NE(made.notes[0].find("does not support system messages"), std::string::npos);
}

TEST(OllamaTemplate, IsEmptyIfNoneIsEqual) {
  const std::string turn = "{{ m.role + ':' + m.content + '\n' }}";
  const auto over = [](const std::string& body) {
    return "{% for m in messages %}" + body + "{% endfor %}";
  };
  EXPECT_EQ(reason_of("{{ strftime_now('%d %b %Y') }}" + over(turn)), "it prints the current date");
  EXPECT_EQ(reason_of(over("{{ m.role + ':' + m.content.split('</think>')[-1] + '\n' }}")),
            "it changes the content of some messages, like templates of thinking models");
  // Known by its own source alone.
  EXPECT_EQ(reason_of(over("{{ m.role + ':' + m.content.replace('<|channel|>', '') + '\n' }}")),
            "it changes the content of some messages, like templates of thinking models");
  EXPECT_EQ(
      reason_of(over("{% if loop.last and m.role == 'user' %}{{ 'now ' }}{% endif %}" + turn)),
      "the text around a message depends on more than its role");
  EXPECT_EQ(reason_of("{{ messages | length }}" + over(turn)),
            "the text around a message depends on more than its role");
  EXPECT_EQ(reason_of(over("{% if m.role == 'system' %}{{ m.content }}{% endif %}") +
                      over("{% if m.role != 'system' %}" + turn + "{% endif %}")),
            "system messages inside a conversation change its output");
  EXPECT_EQ(reason_of(over("{% if loop.last %}" + turn + "{% endif %}")),
            "it does not render each user message exactly once and in order");
  EXPECT_EQ(reason_of(over("{{ m.content | upper }}")),
            "it does not render each user message exactly once and in order");
  EXPECT_EQ(reason_of(over("{{ m.content | replace('\n', ' ') }}")),
            "it changes the white space around user messages");
  EXPECT_EQ(reason_of("{{ raise_exception('never') }}"),
            "it rejects a plain conversation (the template raised an error: never)");
  EXPECT_EQ(reason_of(over(turn) + "{% if messages | length == 6 %}{{ raise_exception('four') }}"
                                   "{% endif %}"),
            "it rejects conversations of alternating user and assistant messages");
}

/// As transformers' continue_final_message.
TEST(ChatProbe, ContinuesTheLastMessageWhereItEnds) {
  const ChatTemplate trimming(kTrimming), plain(kWithDefault);
  const Conversation chat = {{Role::kUser, "Hi"}, {Role::kAssistant, " Well, "}};
  EXPECT_EQ(ChatProbe(trimming, {}).prompt(chat), "[user]Hi;[assistant]Well,");
  EXPECT_TRUE(ChatProbe(plain, {}).prompt(chat).ends_with("assistant\n Well, "));
}

TEST(ChatOutline, TrimsLikePython) {
  ChatOutline outline;
  outline.turn(Role::kUser, TurnPlace::kFirst) = {
      .open = "<", .close = ">", .trims_start = true, .trims_end = true};
  EXPECT_EQ(outline.render({{Role::kUser, "\u3000\x1c\n a b\u00a0\u2003\r\n"}}), "<a b>");
  EXPECT_EQ(outline.render({{Role::kUser, " \n"}}), "<>");
}

}  // namespace
}  // namespace sftrun::templates
