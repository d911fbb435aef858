#include "sftrun/templates/chat_labels.h"

#include <gtest/gtest.h>

#include <string>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"

namespace sftrun::templates {
namespace {

/// A small vocabulary with <|endoftext|>, <|im_start|> and <|im_end|> special, <tool_call> and
/// </tool_call> not.
const tokenizer::Tokenizer& tokenizer() {
  static const tokenizer::Tokenizer made = [] {
    const std::string path = std::string(SFTRUN_TEST_DATA) + "/text/qwen2.tokenizer.json";
    return tokenizer::Tokenizer::from_json(read_text_file(path), path);
  }();
  return made;
}

struct Options {
  LossOn loss_on = LossOn::kAssistant;
  Json kwargs = Json::object();
};

LabelledConversation label(const std::string& source, const std::string& messages,
                           const Options& options = {}) {
  RenderOptions render;
  render.kwargs = options.kwargs;
  return label_conversation(ChatTemplate(source), tokenizer(), Json::parse(messages), render,
                            options.loss_on);
}

/// The text with its runs between { and }.
std::string shown(const std::string& source, const std::string& messages,
                  const Options& options = {}) {
  const LabelledConversation conversation = label(source, messages, options);
  std::string out;
  size_t at = 0;
  for (const auto& run : conversation.runs) {
    out += conversation.rendered.text.substr(at, run.span.begin - at) + "{";
    out += conversation.rendered.text.substr(run.span.begin, run.span.end - run.span.begin) + "}";
    at = run.span.end;
  }
  return out + conversation.rendered.text.substr(at);
}

constexpr const char* kPlain =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(ChatLabels, RunFromTheGenerationPromptThroughTheEndOfTurnToken) {
  EXPECT_EQ(shown(kPlain, R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                              {"role":"user","content":"c"},{"role":"assistant","content":"d"}])"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n{d<|im_end|>}\n");
}

/// Trained tokens of a tokenizer that puts a space before every piece, and whose <|user|> takes the
/// white space behind it (Phi-3's).
std::vector<std::string> trained_pieces(const std::string& answer) {
  const std::string path = std::string(SFTRUN_TEST_DATA) + "/text/llama2.tokenizer.json";
  const tokenizer::Tokenizer pieces = tokenizer::Tokenizer::from_json(read_text_file(path), path);
  const Json messages = Json::array(
      {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", answer}}});
  const ChatTemplate chat_template(
      "{% for m in messages %}{% if m.role == 'user' %}<s>{{ m.content }}<|user|>{% else %}"
      "{{ m.content }}</s>{% endif %}{% endfor %}");
  const LabelledTokens tokens = tokenize_labelled(
      pieces, label_conversation(chat_template, pieces, messages, {}, LossOn::kAssistant));
  std::vector<std::string> trained;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.mask[i]) trained.push_back(pieces.id_to_token(tokens.ids[i]));
  }
  return trained;
}

TEST(ChatLabels, TheSpaceThatTheTokenizerPutsBeforeAnAnswerIsTrained) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(trained_pieces("~"), (Pieces{"\u2581", "<0x7E>", "</s>"}));
}

TEST(ChatLabels, AMarkerThatTakesAnAnswersFirstSpacesIsNotTrained) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(trained_pieces(" \n~"), (Pieces{"\u2581", "<0x7E>", "</s>"}));
}

TEST(ChatLabels, AreNotMisledByTextThatRepeatsItselfOrTheMarkers) {
  EXPECT_EQ(shown(kPlain,
                  R"([{"role":"user","content":"x<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n"},
                              {"role":"assistant","content":"x<|im_end|>\n<|im_start|>user\nx"},
                              {"role":"user","content":"x"},{"role":"assistant","content":"x"}])"),
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n<|im_end|>\n"
            "<|im_start|>assistant\n{x<|im_end|>\n<|im_start|>user\nx<|im_end|>}\n"
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n{x<|im_end|>}\n");
}

TEST(ChatLabels, ReachAnswersThatAreEmptyOrWhiteSpace) {
  EXPECT_EQ(shown(kPlain, R"([{"role":"user","content":""},{"role":"assistant","content":""},
                              {"role":"user","content":""},{"role":"assistant","content":" \n"}])"),
            "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n{<|im_end|>}\n"
            "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n{ \n<|im_end|>}\n");
  // The closing differs at the end of the conversation, and literal markers stand before the
  // content.
  constexpr const char* kChannels =
      "{% for m in messages %}<|im_start|>{{ m.role }}<|endoftext|>final<|endoftext|>{{ m.content "
      "}}"
      "{{ '<|im_end|>' if not loop.last else '<|endoftext|>' }}{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}";
  EXPECT_EQ(
      shown(
          kChannels,
          R"([{"role":"user","content":"a"},{"role":"assistant","content":""},{"role":"user","content":"b"}])"),
      "<|im_start|>user<|endoftext|>final<|endoftext|>a<|im_end|>"
      "<|im_start|>assistant{<|endoftext|>final<|endoftext|><|im_end|>}"
      "<|im_start|>user<|endoftext|>final<|endoftext|>b<|endoftext|>");
}

TEST(ChatLabels, FollowTrimmedText) {
  const std::string source =
      std::string(kPlain).replace(std::string(kPlain).find("m.content"), 9, "m.content|trim");
  EXPECT_EQ(shown(source,
                  R"([{"role":"user","content":" a "},{"role":"assistant","content":"\n b \n"}])"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n");
}

/// Thinks in the last turn only, drops what earlier turns thought, and may open the thinking in its
/// prompt.
constexpr const char* kThinking =
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- set c = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{%- if m.role == 'assistant' and loop.last %}"
    "{%- set r = m.reasoning_content or "
    "(m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content "
    "else '') %}"
    "{{- '<think>\n' + r + '\n</think>\n\n' }}{%- endif %}"
    "{{- c + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if open is defined %}{{- open }}{%- endif %}{%- endif %}";
constexpr const char* kThoughts = R"([
    {"role":"user","content":"a"},{"role":"assistant","content":"<think>\nold\n</think>\n\nb"},
    {"role":"user","content":"c"},{"role":"assistant","content":"<think>\nnew\n</think>\n\nd"}])";

TEST(ChatLabels, HoldWhereTheTemplateDropsEarlierThinking) {
  EXPECT_EQ(shown(kThinking, kThoughts),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n{<think>\nnew\n</"
            "think>\n\nd<|im_end|>}\n");
}

TEST(ChatLabels, BeginAfterThinkingThatThePromptOpens) {
  EXPECT_EQ(shown(kThinking, kThoughts, {.kwargs = {{"open", "<think>\n"}}}),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n{new\n</"
            "think>\n\nd<|im_end|>}\n");
}

TEST(ChatLabels, TakeThePromptsEmptyThinkingAsAWholeOrNotAtAll) {
  const Options options{.kwargs = {{"open", "<think>\n\n</think>\n\n"}}};
  EXPECT_EQ(shown(kThinking, kThoughts, options),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n{<think>\nnew\n</"
            "think>\n\nd<|im_end|>}\n");
  EXPECT_EQ(shown(kThinking,
                  R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])", options),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
            "think>\n\n{b<|im_end|>}\n");
}

TEST(ChatLabels, BeginInTheTextWhereItRepeatsThePromptsThinking) {
  constexpr const char* kOpens =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
  EXPECT_EQ(
      shown(
          kOpens,
          R"([{"role":"user","content":"a"},{"role":"assistant","content":"<think>\nt\n</think>\nb"}])"),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n{t\n</"
      "think>\nb<|im_end|>}\n");
  EXPECT_EQ(
      shown(kOpens,
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"t\n</think>\nb"}])"),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{t\n</think>\nb<|im_end|>}\n");
}

constexpr const char* kTools =
    "{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response name=\"' + (m.name or '') + '\">' + m.content + "
    "'</tool_response><|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] %}{{- '\n<tool_call>\n{\"name\": \"' + c.function.name + '\", "
    "\"arguments\": ' }}"
    "{{- c.function.arguments|tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' "
    "}}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

TEST(ChatLabels, CoverACompletionThatOnlyClosesItsThinking) {
  constexpr const char* kClosing =
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"t\n</think>\n\nb"}])";
  EXPECT_EQ(shown(kThinking, kClosing),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
            "{<think>\nt\n</think>\n\nb<|im_end|>}\n");
  Options opens;
  opens.kwargs["open"] = "<think>\n";
  EXPECT_EQ(shown(kThinking, kClosing, opens),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
            "<think>\n{t\n</think>\n\nb<|im_end|>}\n");
}

TEST(ChatLabels, CoverReasoningOfItsOwnField) {
  EXPECT_EQ(shown(kThinking, R"([{"role":"user","content":"a"},
                {"role":"assistant","content":"b","reasoning_content":"r"}])"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
            "{<think>\nr\n</think>\n\nb<|im_end|>}\n");
}

TEST(ChatLabels, CoverContentParts) {
  constexpr const char* kParts =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}"
      "{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(shown(kParts, R"([{"role":"user","content":[{"type":"text","text":"a"}]},
                {"role":"assistant","content":[{"type":"text","text":"b"},
                                               {"type":"text","text":"c"}]}])"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{bc<|im_end|>}\n");
  EXPECT_EQ(shown(kParts, R"([{"role":"user","content":"a"},{"role":"assistant","content":null}])"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{<|im_end|>}\n");
}

TEST(ChatLabels, CoverParallelToolCallsAndNotTheToolsAnswers) {
  EXPECT_EQ(shown(kTools, R"([{"role":"user","content":"a"},
      {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"x":1}}},{"function":{"name":"g","arguments":{}}}]},
      {"role":"tool","name":"f","content":"1"},{"role":"tool","name":"g","content":"2"},{"role":"assistant","content":"b"}])"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
            "{\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"
            "\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>}\n"
            "<|im_start|>user\n<tool_response name=\"f\">1</tool_response><|im_end|>\n"
            "<|im_start|>user\n<tool_response name=\"g\">2</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n{b<|im_end|>}\n");
}

TEST(ChatLabels, EndWhereTheCallEndsThoughItsNameReturnsInTheAnswersHeader) {
  constexpr const char* kNamed =
      "{%- set ns = namespace(name='') %}{%- for m in messages %}{%- if m.role == 'tool' %}"
      "{{- '<|im_start|>' + ns.name + ' says ' + m.content + '<|im_end|>' }}{%- else %}{{- "
      "'<|im_start|>' + m.role + ':' + m.content }}"
      "{%- if m.tool_calls %}{%- set ns.name = m.tool_calls[0].name %}{{- ' calls ' + ns.name "
      "}}{%- endif %}{{- '<|im_end|>' }}{%- endif %}{%- endfor %}"
      "{%- if add_generation_prompt %}{{- '<|im_start|>assistant:' }}{%- endif %}";
  EXPECT_EQ(
      shown(
          kNamed,
          R"([{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"name":"f"}]},
                              {"role":"tool","content":"1"},{"role":"assistant","content":"b"}])"),
      "<|im_start|>user:a<|im_end|><|im_start|>assistant:{ calls f<|im_end|>}"
      "<|im_start|>f says 1<|im_end|><|im_start|>assistant:{b<|im_end|>}");
}

// Gemma 4's way: text beside a call stands behind the tool's answer, and the turn goes on without a
// header.
TEST(ChatLabels, CoverTextThatTheTemplateWritesAfterAToolsAnswer) {
  constexpr const char* kBehind =
      "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>"
      "<|endoftext|>{% elif m.role == 'assistant' %}"
      "{% for c in m.tool_calls or [] %}<|im_start|>call:{{ c.f }}<|im_end|>{% endfor %}"
      "{% if m.tool_calls %}{% if loop.nextitem is defined %}<|im_start|>answer to "
      "{{ m.tool_calls[0].f }}:{{ loop.nextitem.content }}<|im_end|>{% endif %}{% endif %}"
      "{{ m.content }}{% if not m.tool_calls %}<|im_end|>{% endif %}{% endif %}{% endfor %}";
  EXPECT_EQ(shown(kBehind, R"([{"role":"user","content":"u"},
                               {"role":"assistant","content":"text","tool_calls":[{"f":"A"}]},
                               {"role":"tool","content":"t"},
                               {"role":"assistant","content":"","tool_calls":[{"f":"B"}]},
                               {"role":"tool","content":"v"},
                               {"role":"assistant","content":"end"}])"),
            "<|im_start|>u<|im_end|><|endoftext|>{<|im_start|>call:A<|im_end|>}"
            "<|im_start|>answer to A:t<|im_end|>{text}{<|im_start|>call:B<|im_end|>}"
            "<|im_start|>answer to B:v<|im_end|>{end<|im_end|>}");
}

TEST(ChatLabels, EndWithTheNextHeaderWhereThatClosesTheTurn) {
  constexpr const char* kClosedByNext =
      "{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}{{ m.role "
      "}}\n{{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_end|>assistant\n{% endif %}";
  EXPECT_EQ(
      shown(kClosedByNext, R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                                     {"role":"user","content":"c"},{"role":"assistant","content":"d"}])"),
      "<|im_start|>user\na\n<|im_end|>assistant\n{b\n<|im_start|>}user\nc\n<|im_end|>assistant\n{d}"
      "\n");
}

TEST(ChatLabels, NeedNoGenerationPrompt) {
  constexpr const char* kInstruct =
      "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ "
      "m.content }}<|endoftext|>{% endif %}{% endfor %}";
  EXPECT_EQ(shown(kInstruct, R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                                 {"role":"user","content":"c"},{"role":"assistant","content":"d"}])"),
            "[INST] a [/INST]{ b<|endoftext|>}[INST] c [/INST]{ d<|endoftext|>}");
}

TEST(ChatLabels, HoldWhereTheTemplateRefusesTheMessagesBeforeATurn) {
  const std::string source =
      std::string("{% if not messages %}{{ raise_exception('No messages') }}{% endif %}") + kPlain;
  EXPECT_EQ(
      shown(
          source,
          R"([{"role":"assistant","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c"}])"),
      "<|im_start|>assistant\n{a<|im_end|>}\n<|im_start|>user\nb<|im_end|>\n<|im_start|>"
      "assistant\n{c<|im_end|>}\n");
}

TEST(ChatLabels, SkipAHeaderThatAPrefilledSystemPromptPrecedes) {
  constexpr const char* kDefaultSystem =
      "{% for m in messages %}{% if loop.first and m.role != 'system' "
      "%}<|im_start|>system\nHelp.<|im_end|>\n{% endif %}"
      "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if "
      "add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(shown(kDefaultSystem, R"([{"role":"assistant","content":"a"}])"),
            "<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>assistant\n{a<|im_end|>}\n");
}

TEST(ChatLabels, UseTheTemplatesMarks) {
  constexpr const char* kMarked =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% "
      "generation %}{{ m.content }}<|im_end|>\n"
      "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}";
  const std::string messages =
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","train":false},
                                   {"role":"user","content":"c"},{"role":"assistant","content":"d"}])";
  EXPECT_EQ(shown(kMarked, messages),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n{d<|im_end|>\n}");
  EXPECT_EQ(label(kMarked, messages).runs[0].message, 3);
}

TEST(ChatLabels, ObeyTheRecord) {
  const std::string messages =
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","train":false},
      {"role":"user","content":"c"},{"role":"assistant","content":"d","weight":0},
      {"role":"user","content":"e"},{"role":"assistant","content":"f","weight":1,"train":true},
      {"role":"user","content":"g"},{"role":"assistant","content":"h"}])";
  const auto turns = [&messages](LossOn loss_on) {
    std::string out;
    for (const auto& run : label(kPlain, messages, {.loss_on = loss_on}).runs)
      out += std::to_string(run.message) + " ";
    return out;
  };
  EXPECT_EQ(turns(LossOn::kAssistant), "5 7 ");
  EXPECT_EQ(turns(LossOn::kLastAssistant), "7 ");
  EXPECT_EQ(
      shown(
          kPlain,
          R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","train":false},{"role":"user","content":"c"}])",
          {.loss_on = LossOn::kAll}),
      "{<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n}b<|im_end|>{\n<|im_start|>user\nc<|"
      "im_end|>\n}");
  EXPECT_EQ(shown(kPlain, R"([{"role":"user","content":"a"}])", {.loss_on = LossOn::kAll}),
            "{<|im_start|>user\na<|im_end|>\n}");
}

TEST(ChatLabels, KeepTheTrainersKeysFromTheTemplate) {
  EXPECT_EQ(label("{{ messages|tojson }}",
                  R"([{"role":"user","content":"a","train":false,"weight":0.5}])")
                .rendered.text,
            R"([{"role": "user", "content": "a"}])");
}

TEST(ChatLabels, RefuseATemplateThatOmitsAnAnswer) {
  constexpr const char* kUsersOnly =
      "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}{% endfor %}";
  try {
    label(
        kUsersOnly,
        R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}])");
    FAIL() << "labelled";
  } catch (const DataError& error) {
    EXPECT_NE(error.message().find("messages[1]"), std::string::npos) << error.message();
  }
}

TEST(ChatLabels, BecomeAMaskOverTokens) {
  const LabelledConversation conversation = label(
      kPlain,
      R"([{"role":"user","content":"good day"},{"role":"assistant","content":"some words"}])");
  const LabelledTokens tokens = tokenize_labelled(tokenizer(), conversation);
  EXPECT_EQ(tokens.ids, tokenizer().encode(conversation.rendered.text, false));
  ASSERT_EQ(tokens.mask.size(), tokens.ids.size());
  ASSERT_EQ(tokens.spans.size(), tokens.ids.size());
  std::string labelled;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.mask[i] != 0) labelled += tokenizer().id_to_token(tokens.ids[i]);
  }
  EXPECT_EQ(labelled,
            "some\xC4\xA0words<|im_end|>");  // Ġ is how byte-level vocabularies write a space
}

}  // namespace
}  // namespace sftrun::templates
