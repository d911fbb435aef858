#include "sftrun/data/sequence.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "sftrun/core/error.h"
#include "sftrun/templates/builtin_templates.h"
#include "support/expect_error.h"
#include "toy_model.h"

namespace sftrun::data {
namespace {

using config::LossOnChoice;
using config::Thinking;

std::vector<Sequence> build(const char* json, RecordFormat format, SequenceOptions options = {},
                            const TextModel& model = test::toy_model()) {
  return SequenceBuilder(format, model, std::move(options)).build(Json::parse(json), "f.jsonl:3");
}

/// What is trained on, as text, with runs that are apart separated by '|'.
std::string trained(const Sequence& sequence) {
  std::string out;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    if (!sequence.mask[i]) continue;
    if (!out.empty() && !sequence.mask[i - 1]) out += '|';
    const auto [begin, end] = sequence.spans[i];
    out += begin == end ? (sequence.ids[i] == test::kEos ? "</s>" : "?")
                        : sequence.text.substr(begin, end - begin);
  }
  return out;
}

constexpr const char* kTwoTurns = R"({"messages": [
  {"role": "system", "content": "S"}, {"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
  {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}]})";

TEST(Conversations, RenderedWithNothingAdded) {
  const auto sequences = build(kTwoTurns, RecordFormat::kMessages, {},
                               test::toy_model(test::kChatMl, /*adds_bos=*/true));
  ASSERT_EQ(sequences.size(), 1U);
  EXPECT_EQ(sequences[0].text,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq1<|im_end|>\n<|im_start|>"
            "assistant\na1<|im_end|>\n"
            "<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\na2<|im_end|>\n");
  EXPECT_EQ(sequences[0].ids.front(), test::kImStart);
  EXPECT_EQ(sequences[0].ids.back(), '\n');
}

// Every built-in template: the answers and their ends are trained on, and nothing else.
TEST(BuiltinTemplates, AnswersAndTheirEndsAreTrained) {
  const std::map<std::string, std::string> ends = {
      {"chatml", "<|im_end|>"}, {"llama3", "<|eot_id|>"},   {"llama2", " </s>"},
      {"mistral", "</s>"},      {"gemma", "<end_of_turn>"}, {"phi3", "<|end|>"},
      {"zephyr", "</s>"},       {"vicuna", "</s>"},         {"alpaca", "</s>"}};
  ASSERT_EQ(templates::builtin_template_names().size(), ends.size());
  for (const std::string& name : templates::builtin_template_names()) {
    SCOPED_TRACE(name);
    TextModel model = test::toy_model();
    model.chat_template =
        std::make_shared<const templates::ChatTemplate>(templates::builtin_template(name), name);
    model.render_defaults.bos_token = "<s>";
    model.render_defaults.eos_token = "</s>";
    const auto sequences = build(kTwoTurns, RecordFormat::kMessages, {}, model);
    ASSERT_EQ(sequences.size(), 1U);
    const std::string& end = ends.at(name);
    std::string run = trained(sequences[0]);
    if (run.starts_with(
            ' ')) {  // where an answer begins behind a space, the space is trained on, too
      EXPECT_EQ(run, " a1" + end + "| a2" + end);
    } else {
      EXPECT_EQ(run, "a1" + end + "|a2" + end);
    }
    EXPECT_NE(sequences[0].text.find("S"), std::string::npos);
    EXPECT_NE(sequences[0].text.find("q2"), std::string::npos);
  }
}

TEST(Conversations, LossOn) {
  const auto trained_on = [](LossOnChoice loss_on) {
    return trained(build(kTwoTurns, RecordFormat::kMessages, {.loss_on = loss_on}).at(0));
  };
  EXPECT_EQ(trained_on(LossOnChoice::kAssistant), "a1<|im_end|>|a2<|im_end|>");
  EXPECT_EQ(trained_on(LossOnChoice::kLastAssistant), "a2<|im_end|>");
  EXPECT_EQ(trained_on(LossOnChoice::kCompletion), "a2<|im_end|>");
  const auto all = build(kTwoTurns, RecordFormat::kMessages, {.loss_on = LossOnChoice::kAll}).at(0);
  EXPECT_EQ(trained(all), all.text);
}

TEST(Conversations, MessagesCanBeLeftUntrained) {
  EXPECT_EQ(trained(build(R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "a", "train": false}, {"role": "user", "content": "r"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "r"},
      {"role": "assistant", "content": "c", "weight": 0}]})",
                          RecordFormat::kMessages)
                        .at(0)),
            "b<|im_end|>");
}

TEST(Conversations, PromptCompletionOfMessages) {
  constexpr const char* kRecord =
      R"({"prompt": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
      {"role": "user", "content": "q2"}],
      "completion": [{"role": "assistant", "content": "a2"}, {"role": "user", "content": "q3"}, {"role": "assistant", "content": "a3"}]})";
  const auto trained_on = [&](LossOnChoice loss_on) {
    return trained(build(kRecord, RecordFormat::kPromptCompletion, {.loss_on = loss_on}).at(0));
  };
  EXPECT_EQ(trained_on(LossOnChoice::kAssistant),
            "a2<|im_end|>|a3<|im_end|>");  // not a1: it is the prompt's
  EXPECT_EQ(trained_on(LossOnChoice::kLastAssistant), "a3<|im_end|>");
  EXPECT_EQ(trained_on(LossOnChoice::kCompletion),  // as TRL's completion_only_loss
            "a2<|im_end|>\n<|im_start|>user\nq3<|im_end|>\n<|im_start|>assistant\na3<|im_end|>\n");
}

TEST(Conversations, Alpaca) {
  EXPECT_EQ(
      build(R"({"instruction": "Add.", "input": "1 2", "output": "3"})", RecordFormat::kAlpaca)
          .at(0)
          .text,
      "<|im_start|>user\nAdd.\n\n1 2<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n");
}

constexpr const char* kParts = R"({"messages": [
  {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "r"}]},
  {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]})";

TEST(ContentParts, ReachTemplatesThatReadThem) {
  const auto sequences = build(
      kParts, RecordFormat::kMessages, {},
      test::toy_model("{% for m in messages %}{{ m.role }}:{% for p in m.content %}[{{ p.text }}]"
                      "{% endfor %}<|im_end|>{% endfor %}"
                      "{% if add_generation_prompt %}assistant:{% endif %}"));
  EXPECT_EQ(sequences.at(0).text, "user:[q][r]<|im_end|>assistant:[a]<|im_end|>");
  EXPECT_EQ(trained(sequences.at(0)), "[a]<|im_end|>");
}

TEST(ContentParts, AreJoinedForTemplatesThatReadStrings) {
  constexpr const char* kText =
      "<|im_start|>user\nq\nr<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n";
  const auto by_tilde = build(kParts, RecordFormat::kMessages);  // would print the list
  EXPECT_EQ(by_tilde.at(0).text, kText);
  EXPECT_EQ(trained(by_tilde.at(0)), "a<|im_end|>");
  const auto by_plus = build(  // would fail
      kParts, RecordFormat::kMessages, {},
      test::toy_model("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + "
                      "'<|im_end|>\n' }}{% endfor %}"
                      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"));
  EXPECT_EQ(by_plus.at(0).text, kText);
}

TEST(ContentParts, OfOtherKindsAreRefused) {
  const auto failure = [](const char* part) {
    try {
      build((std::string(R"({"messages": [{"role": "user", "content": [)") + part + "]}]}").c_str(),
            RecordFormat::kMessages);
    } catch (const DataError& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(failure(R"({"type": "image", "url": "x"})"),
            "messages[0].content[0] is an image, and the model reads text alone");
  for (const char* part :
       {R"({"type": "text"})", "3", R"("text")", R"([{"text": "q"}])",
        R"({"type": "text", "text": null})", R"({"type": "text", "text": ["q"]})",
        R"({"type": "text", "content": "q"})", R"({"type": 1, "text": "q"})"})
    EXPECT_EQ(failure(part), "messages[0].content[0] is not a text part") << part;
  for (const char* key : {"image", "content", "value"}) {
    const std::string part = fmt::format(R"({{"type": "text", "text": "q", "{}": "x"}})", key);
    EXPECT_EQ(
        failure(part.c_str()),
        fmt::format("messages[0].content[0] has \"{}\" beside its text, which is not read", key));
  }
}

/// Gemma's loop over the parts of a turn; of a system message it reads the first part. Other roles
/// than these two are printed.
constexpr const char* kTypedParts =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content is string %}{{ m.content }}"
    "{% elif m.role == 'system' %}{{ m.content[0].text }}"
    "{% elif m.role == 'tool' %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if 'image' in p %}<image>{% elif p['type'] == 'text' %}"
    "{{ p['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(ContentParts, WithoutTypeOrWithNullsAreTexts) {
  for (const char* part :
       {R"({"text": "a"})", R"({"type": null, "text": "a"})",
        R"({"type": "text", "text": "a", "image": null, "image_url": null, "videos": []})",
        R"({"text": "a", "cache_control": {"type": "ephemeral"}})"}) {
    for (const char* chat_template : {kTypedParts, test::kChatMl}) {
      const std::string record = fmt::format(R"({{"messages": [{{"role": "user", "content": "q"}},
                          {{"role": "assistant", "content": [{}]}}]}})",
                                             part);
      EXPECT_EQ(
          trained(build(record.c_str(), RecordFormat::kMessages, {}, test::toy_model(chat_template))
                      .at(0)),
          "a<|im_end|>")
          << part;
    }
  }
}

TEST(ContentParts, AreJoinedForRolesWhoseTemplateReadsStrings) {
  const auto text = build(R"({"messages": [
      {"role": "system", "content": [{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]},
      {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "r"}]},
      {"role": "tool", "content": [{"type": "text", "text": "o"}]},
      {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
      {"role": "user", "content": []}]})",
                          RecordFormat::kMessages, {}, test::toy_model(kTypedParts))
                        .at(0)
                        .text;
  EXPECT_EQ(text,
            "<|im_start|>system\ns\nt<|im_end|><|im_start|>user\nqr<|im_end|>"
            "<|im_start|>tool\no<|im_end|><|im_start|>assistant\na<|im_end|>"
            "<|im_start|>user\n<|im_end|>");
}

TEST(ContentParts, StringsBecomePartsForTemplatesThatReadOnlyThose) {
  const std::string loops =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% for p in m.content %}"
      "{% if p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  for (const std::string& chat_template :
       {loops, "{% if messages[0].content[0].type == 'image' %}<image>{% endif %}" + loops}) {
    const auto sequence =
        build(
            R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
            RecordFormat::kMessages, {}, test::toy_model(chat_template))
            .at(0);
    EXPECT_EQ(sequence.text, "<|im_start|>user\nq<|im_end|><|im_start|>assistant\na<|im_end|>");
    EXPECT_EQ(trained(sequence), "a<|im_end|>");
  }
}

TEST(ContentParts, AreJoinedForTemplatesThatReadTheFirstPart) {
  const std::string first =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content[0]['text'] }}<|im_end|>"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const auto sequence = build(R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
      {"role": "user", "content": []}]})",
                              RecordFormat::kMessages, {}, test::toy_model(first))
                            .at(0);
  EXPECT_EQ(sequence.text,
            "<|im_start|>user\nq<|im_end|><|im_start|>assistant\na\nb<|im_end|>"
            "<|im_start|>user\n<|im_end|>");
}

TEST(Conversations, EmptyAnswersAreCounted) {
  for (const char* content :
       {R"("")", "[]", R"([{"type": "text", "text": ""}])", R"([{"text": " "}, {"text": "\n"}])",
        R"("<think>\n\n</think>\n\n")"}) {
    for (const char* chat_template : {kTypedParts, test::kChatMl}) {
      const std::string record = fmt::format(R"({{"messages": [{{"role": "user", "content": "q"}},
              {{"role": "assistant", "reasoning_content": " ", "content": {}}}]}})",
                                             content);
      EXPECT_EQ(build(record.c_str(), RecordFormat::kMessages, {}, test::toy_model(chat_template))
                    .at(0)
                    .num_empty_answers,
                1)
          << content;
    }
  }
}

TEST(Embeddings, TokensWithoutOneAreRefused) {
  TextModel model = test::toy_model();
  model.num_embeddings = test::kImEnd;  // one too few for <|im_end|>
  EXPECT_EQ(build(R"({"text": "a"})", RecordFormat::kText, {}, model).size(), 1U);
  try {
    build(R"({"text": "a<|im_end|>b"})", RecordFormat::kText, {}, model);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_EQ(error.message(),
              "the text contains the token `<|im_end|>` with the id 259, but the model has "
              "embeddings for only 259 tokens");
    EXPECT_EQ(error.where(), "f.jsonl:3");
  }
}

TEST(Tools, CallsAreTrainedAndToolsAndResultsAreNot) {
  const auto sequences = build(
      R"({"tools": [{"type": "function", "function": {"name": "add"}}], "messages": [
      {"role": "user", "content": "1+2?"},
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}},
        {"id": "c2", "function": {"name": "add", "arguments": {"a": 2}}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "3"},
      {"role": "assistant", "content": "3"}]})",
      RecordFormat::kMessages, {},
      test::toy_model(
          "{{ tools[0].function.name }};{% for m in messages %}"
          "{{ '<|im_start|>' + m.role + '\n' }}{{ m.tool_call_id }}{{ m.content or '' }}"
          "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
          "{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"));
  EXPECT_EQ(sequences.at(0).text,
            "add;<|im_start|>user\n1+2?<|im_end|><|im_start|>assistant\n"
            R"(add{"a": 1}add{"a": 2}<|im_end|>)"
            "<|im_start|>tool\nc13<|im_end|><|im_start|>assistant\n3<|im_end|>");
  EXPECT_EQ(trained(sequences.at(0)), R"(add{"a": 1}add{"a": 2}<|im_end|>|3<|im_end|>)");
}

/// Python prints integers of any length; a string of arguments has them, too.
TEST(Tools, LongNumbersInArguments) {
  const std::string record =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "weight": null,
            "tool_calls": [{"id": null, "type": "function", "function": {"name": "f", "description": null,
              "arguments": {"x": 12345678901234567890123, "y": [-1e22, 4.50, null], "z":
              1234567890123456789012345678901234567890123}}}]}]})";
  const auto sequence =
      SequenceBuilder(RecordFormat::kMessages,
                      test::toy_model("{% for m in messages %}<|im_start|>{{ m.role }}\n"
                                      "{% for c in m.tool_calls or [] %}{{ c | tojson }}"
                                      "{{ c.function.arguments.z }}{% endfor %}<|im_end|>"
                                      "{% endfor %}{% if add_generation_prompt %}"
                                      "<|im_start|>assistant\n{% endif %}"),
                      {})
          .build(parse_json_line(record, "f:1"), "f:1")
          .at(0);
  EXPECT_EQ(trained(sequence), R"({"type": "function", "function": {"name": "f", "arguments": )"
                               R"({"x": 12345678901234567890123, "y": [-1e+22, 4.5, null], )"
                               R"("z": 1234567890123456789012345678901234567890123}}})"
                               "1234567890123456789012345678901234567890123<|im_end|>");
}

/// As `datasets` writes a table of calls with different arguments as JSON.
TEST(Tools, NullsInArgumentsAreMissingValues) {
  const auto with = [](const std::string& null_a, const std::string& null_b) {
    const std::string record =
        R"({"tools": [{"name": "f")" + null_a + R"(, "p": {"type": "x")" + null_a +
        R"(}}], "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1)" +
        null_b + R"(, "y": [null, {"z": 1)" + null_b + "}]}}}]}]}";
    return build(record.c_str(), RecordFormat::kMessages, {},
                 test::toy_model(std::string("{{ tools | tojson }}{% for m in messages %}"
                                             "{{ m.tool_calls | tojson if m.tool_calls }}"
                                             "{% endfor %}") +
                                 test::kChatMl))
        .at(0);
  };
  const Sequence plain = with("", ""), nulls = with(R"(, "n": null)", R"(, "n": null)");
  EXPECT_EQ(nulls.text, plain.text);
  EXPECT_NE(plain.text.find(R"({"x": 1, "y": [null, {"z": 1}]})"), std::string::npos);
  EXPECT_FALSE(plain.has_null_arguments);
  EXPECT_TRUE(nulls.has_null_arguments);
  EXPECT_TRUE(with(R"(, "n": null)", "").has_null_arguments);
}

TEST(UnreadKeys, OfTurnsAreNamed) {
  const auto unread = [](const char* json, RecordFormat format) {
    return build(json, format, {},
                 test::toy_model(
                     std::string("{# lang #}{{ '<lang>' if messages[0].mood == 'lang:' }}") +
                     test::kChatMl))[0]
        .unread_turn_keys;
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(unread(R"({"messages": [{"role": "user", "content": "q", "lang": "en", "mood": "sad"},
        {"role": "assistant", "content": "a", "loss": false, "train_detail": [{}], "weight": 1,
         "name": "x", "refusal": null, "annotations": [], "note": ""}]})",
                   RecordFormat::kMessages),
            (Keys{"lang", "loss", "train_detail"}));
  EXPECT_EQ(unread(R"({"conversations": [{"from": "human", "value": "q", "mood": 1},
        {"from": "gpt", "value": "a", "loss_weight": 0}]})",
                   RecordFormat::kShareGpt),
            (Keys{"loss_weight", "mood"}));
  EXPECT_EQ(unread(R"({"prompt": [{"role": "user", "content": "q"}],
        "completion": [{"role": "assistant", "content": "a", "loss": 0.5}]})",
                   RecordFormat::kPromptCompletion),
            Keys{"loss"});
}

/// OpenAI's records have null content beside calls. transformers leaves null out; what a template
/// makes of that stands, unless it fails.
TEST(Tools, ContentThatIsNullOrMissingBesideACall) {
  const std::string calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}";
  const auto text = [&](const std::string& of_content, const std::string& content) {
    const auto sequences = build(
        (R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", )" + content +
         R"("tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}]}]})")
            .c_str(),
        RecordFormat::kMessages, {},
        test::toy_model(
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}" + of_content + calls +
            "<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"));
    EXPECT_EQ(trained(sequences.at(0)).substr(trained(sequences.at(0)).find("add")),
              "add<|im_end|>");
    const std::string& all = sequences.at(0).text;
    return all.substr(all.rfind('\n') + 1);
  };
  const std::string null = R"("content": null, )";
  for (const std::string& content : {null, std::string(), std::string(R"("content": "", )")}) {
    EXPECT_EQ(text("{{ m.content }}", content), "add<|im_end|>") << content;
    EXPECT_EQ(text("{{ '' + m.content }}", content), "add<|im_end|>") << content;
    EXPECT_EQ(text("{{ m.content | trim }}", content), "add<|im_end|>") << content;
    EXPECT_EQ(text("{{ m.content or '' }}", content), "add<|im_end|>") << content;
  }
  EXPECT_EQ(text("{{ 'no text, ' if m.content is not defined else m.content }}", null),
            "no text, add<|im_end|>");
  EXPECT_EQ(text("{{ 'named ' if 'name' in m }}{{ m.content }}", null + R"("name": null, )"),
            "add<|im_end|>");
}

/// Arguments as OpenAI's API has them, a string of JSON: templates that write an object would quote
/// it once more; those that know strings get them as they are.
TEST(Tools, ArgumentsThatAreAString) {
  const auto trained_by = [](const std::string& of_call, const std::string& arguments) {
    const auto sequences = build(
        (R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "",
             "tool_calls": [{"function": {"name": "add", "arguments": )" +
         Json(arguments).dump() + "}}]}]}")
            .c_str(),
        RecordFormat::kMessages, {},
        test::toy_model(
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}" +
            of_call +
            "{% endfor %}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"));
    return trained(sequences.at(0));
  };
  const std::string quotes = "{{ c.function.arguments | tojson }}";
  const std::string walks =
      "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}";
  const std::string knows =
      "{% if c.function.arguments is string %}{{ c.function.arguments }}"
      "{% else %}" +
      quotes + "{% endif %}";
  EXPECT_EQ(trained_by(quotes, R"({"a":1})"), R"(add{"a": 1}<|im_end|>)");
  EXPECT_EQ(trained_by(walks, R"({"a":1})"), "adda=1<|im_end|>");
  EXPECT_EQ(trained_by(knows, R"({"a":1})"), R"(add{"a":1}<|im_end|>)");
  // Gemma 4: a string is put between the braces of the object.
  const std::string encloses =
      "{{ '{' }}{% if c.function.arguments is mapping %}"
      "{% for k, v in c.function.arguments.items() %}{{ k }}:{{ v }}{% endfor %}"
      "{% else %}{{ c.function.arguments }}{% endif %}{{ '}' }}";
  EXPECT_EQ(trained_by(encloses, R"({"a":1})"), "add{a:1}<|im_end|>");
  EXPECT_EQ(trained_by(quotes, " "), "add{}<|im_end|>");
}

TEST(Tools, TheFormOfCallsIsTheTemplates) {
  const auto text = [](const std::string& of_call, const std::string& call) {
    const std::string record =
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", )" +
        call + "}]}";
    return trained(
        build(record.c_str(), RecordFormat::kMessages, {},
              test::toy_model(
                  "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content }}"
                  "{% for c in m.tool_calls or [] %}" +
                  of_call +
                  "{% endfor %}<|im_end|>{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"))
            .at(0));
  };
  const std::string by_id = "{{ c.id }}{{ c.function.arguments | tojson }}",
                    adds = "{{ c.function.name + c.function.arguments }}",
                    walks =
                        "{{ c.function.name }}{% for k, v in c.function.arguments | items %}"
                        "{{ k }}={{ v }}{% endfor %}";
  constexpr const char* kObject =
      R"("tool_calls": [{"function": {"name": "f", "arguments": {"a": "ü", "b": [1]}}}])";
  EXPECT_EQ(text(adds, kObject), R"(f{"a": "ü", "b": [1]}<|im_end|>)") << "as json.dumps writes it";
  constexpr const char* kNone = R"("tool_calls": [{"id": null, "function": {"name": "f"}}])";
  EXPECT_EQ(text(adds, kNone), "f{}<|im_end|>");
  EXPECT_EQ(text(walks, kNone), "f<|im_end|>");
  EXPECT_EQ(text(by_id, R"("tool_calls": [{"id": "f:0", "function": {"name": "f"}}])"),
            "f:0{}<|im_end|>")
      << "Kimi K2";
  constexpr const char* kFlat = R"("tool_calls": [{"name": "f", "arguments": "{\"a\": 1}"}])";
  EXPECT_EQ(text(walks, kFlat), "fa=1<|im_end|>");
  constexpr const char* kOlder = R"("function_call": {"name": "f", "arguments": "{\"a\": 1}"})";
  EXPECT_EQ(text(walks, kOlder), "fa=1<|im_end|>");
}

TEST(Tools, CallsThatCannotBeReadAreNamed) {
  const auto failure = [](const std::string& call) {
    const std::string record =
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", )" +
        call + "}]}";
    try {
      build(record.c_str(), RecordFormat::kMessages);
    } catch (const DataError& error) {
      return error.message();
    }
    return std::string("no error");
  };
  const auto of_arguments = [&](const std::string& arguments) {
    return failure(R"("tool_calls": [{"function": {"name": "f", "arguments": )" + arguments +
                   "}}]");
  };
  const std::string field = "messages[1].tool_calls[0].function.arguments ";
  EXPECT_EQ(of_arguments("[1]"), field + "must be an object, not a list");
  EXPECT_EQ(of_arguments("3"), field + "must be an object, not number");
  EXPECT_EQ(of_arguments(R"("[1]")"), field + "is a string that is not a JSON object: [1]");
  EXPECT_EQ(of_arguments(R"("one")"), field + "is a string that is not a JSON object: one");
  EXPECT_LT(of_arguments('"' + std::string(10000, 'x') + '"').size(), 400U);
  EXPECT_EQ(failure(R"("tool_calls": {"name": "f"})"),
            "messages[1].tool_calls must be a list of calls, not object");
  EXPECT_EQ(failure(R"("tool_calls": [{"function": {"arguments": {}}}])"),
            "messages[1].tool_calls[0].function is not a call of a function: it needs a \"name\"");
  EXPECT_EQ(failure(R"("function_call": {"name": "f", "arguments": 1})"),
            "messages[1].function_call.arguments must be an object, not number");
}

TEST(Tools, AnAnswerOfWhichTheTemplateDropsAllIsNotTrained) {
  const std::string call = R"("tool_calls": [{"function": {"name": "add", "arguments": {}}}])";
  const auto trained_of = [&](const std::string& content) {
    const std::string record =
        R"({"messages": [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": )" +
        content + ", " + call +
        R"(}, {"role": "tool", "content": "3"}, {"role": "assistant", "content": "3"}]})";
    const auto sequences =
        build(record.c_str(), RecordFormat::kMessages, {}, test::toy_model(test::kChatMl));
    EXPECT_EQ(sequences.at(0).left_out.tool_calls, 1);
    return trained(sequences.at(0));
  };
  EXPECT_EQ(trained_of("\"\""), "3<|im_end|>");
  EXPECT_EQ(trained_of("\"I add.\""), "I add.<|im_end|>|3<|im_end|>");
}

constexpr const char* kThinking = R"({"messages": [
  {"role": "user", "content": "q1"}, {"role": "assistant", "content": "t1</think>a1"},
  {"role": "user", "content": "q2"}, {"role": "assistant", "content": "t2</think>a2"}, {"role": "user", "content": "q3"}]})";

TEST(Thinking, AsInTheTemplate) {
  const auto sequences =
      build(kThinking, RecordFormat::kMessages, {}, test::toy_model(test::kThinkingChatMl));
  ASSERT_EQ(sequences.size(), 1U);
  EXPECT_EQ(trained(sequences[0]), "a1<|im_end|>|a2<|im_end|>");  // a third user turn follows
}

TEST(Thinking, KeepAsksTheTemplate) {
  const auto sequences = build(kThinking, RecordFormat::kMessages, {.thinking = Thinking::kKeep},
                               test::toy_model(test::kThinkingChatMl));
  EXPECT_EQ(trained(sequences.at(0)), "t1</think>a1<|im_end|>|t2</think>a2<|im_end|>");
}

TEST(Thinking, SplitTrainsEveryAnswerWithItsReasoning) {
  const auto sequences = build(kThinking, RecordFormat::kMessages, {.thinking = Thinking::kSplit},
                               test::toy_model(test::kThinkingChatMl));
  ASSERT_EQ(sequences.size(), 2U);
  EXPECT_EQ(sequences[0].text,
            "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\nt1</think>a1<|im_end|>\n");
  EXPECT_EQ(trained(sequences[0]), "t1</think>a1<|im_end|>");
  EXPECT_EQ(sequences[1].text,
            "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n"
            "<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\nt2</think>a2<|im_end|>\n");
  EXPECT_EQ(trained(sequences[1]), "t2</think>a2<|im_end|>");
}

TEST(Thinking, SplitSkipsTurnsThatAreNotTrained) {
  const auto sequences = build(
      R"({"messages": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1", "train": false},
      {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}]})",
      RecordFormat::kMessages, {.thinking = Thinking::kSplit});
  ASSERT_EQ(sequences.size(), 1U);
  EXPECT_EQ(trained(sequences[0]), "a2<|im_end|>");
}

/// Qwen 3.5: reasoning is what is between the marks, and the generation prompt opens it.
constexpr const char* kOpensThinking =
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- set content = m.content | trim -%}"
    "{%- if m.role == 'assistant' -%}{%- set reasoning = m.reasoning_content or '' -%}"
    "{%- if not reasoning and '</think>' in content -%}"
    "{%- set reasoning = content.split('</think>')[0].split('<think>')[-1] -%}"
    "{%- set content = content.split('</think>')[-1] | trim -%}{%- endif -%}"
    "{{ '<think>\n' + reasoning | trim + '\n</think>\n\n' }}{%- endif -%}"
    "{{ content + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif -%}";

std::string answered(const std::string& content) {
  return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": )" +
         Json(content).dump() + "}]}";
}

TEST(Thinking, EmptyReasoningThatThePromptOpens) {
  const TextModel model = test::toy_model(kOpensThinking);
  const auto built = [&](const std::string& content, config::EmptyThinking empty_thinking,
                         LossOnChoice loss_on = LossOnChoice::kAssistant) {
    return build(answered(content).c_str(), RecordFormat::kMessages,
                 {.loss_on = loss_on, .empty_thinking = empty_thinking}, model)
        .at(0);
  };
  using config::EmptyThinking;
  const Sequence kept = built("a", EmptyThinking::kWarn);
  EXPECT_EQ(trained(kept), "\n</think>\n\na<|im_end|>");
  EXPECT_EQ(kept.num_empty_thinking, 1);
  const Sequence dropped = built("a", EmptyThinking::kDrop);
  EXPECT_EQ(trained(dropped), "a<|im_end|>");
  EXPECT_EQ(dropped.num_empty_thinking, 1);
  const Sequence thinks = built("r</think>a", EmptyThinking::kDrop);
  EXPECT_EQ(trained(thinks), "r\n</think>\n\na<|im_end|>");
  EXPECT_EQ(thinks.num_empty_thinking, 0);
  EXPECT_EQ(trained(built("a", EmptyThinking::kDrop, LossOnChoice::kAll)),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n|a<|im_end|>\n");
}

/// gpt-oss writes a channel before the text of an answer, MiniMax M3 only the end of reasoning.
TEST(Thinking, EmptyReasoningBehindWordsOfTheTemplate) {
  const auto dropped = [](const std::string& before, const std::string& content) {
    const TextModel model = test::toy_model(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' %}" +
        before +
        "{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
    const Sequence sequence = build(answered(content).c_str(), RecordFormat::kMessages,
                                    {.empty_thinking = config::EmptyThinking::kDrop}, model)
                                  .at(0);
    return fmt::format("{} {}", sequence.num_empty_thinking, trained(sequence));
  };
  EXPECT_EQ(dropped("final: ", "<think>\n</think>\n\na"), "1 final: |a<|im_end|>");
  EXPECT_EQ(dropped("final: ", "a<think></think>"), "0 final: a<think></think><|im_end|>");
  EXPECT_EQ(dropped("</mm:think>", "a"), "1 a<|im_end|>");
  EXPECT_EQ(dropped("<think>\n</think>", "<think></think>a"), "1 a<|im_end|>");
}

TEST(Thinking, TextOutsideTheReasoningThatTheTemplateDropsIsFound) {
  const TextModel model = test::toy_model(kOpensThinking);
  const auto left_out = [&](const std::string& content, const TextModel& of) {
    return build(answered(content).c_str(), RecordFormat::kMessages, {}, of).at(0).left_out;
  };
  for (const char* content :
       {"r</think>a</think>b", "<think>r</think>a</think>b", "a<think>r</think>b",
        "<think>r</think>a<think>s</think>b", "b</think>b</think>b"})
    EXPECT_EQ(left_out(content, model).answer_texts, 1) << content;
  for (const char* content : {"a", "r</think>a", "<think>\nr\n</think>\n\na", "a <think> b"}) {
    EXPECT_EQ(left_out(content, model).answer_texts, 0) << content;
    EXPECT_EQ(left_out(content, model).reasoning, 0) << content;
  }
  EXPECT_EQ(left_out("r</think>a</think>b", test::toy_model()).answer_texts, 0) << "all is written";
}

TEST(Conversations, MessagesThatTheTemplateDropsAreFound) {
  const auto left_out = [](const std::string& of_user) {
    return build(R"({"messages": [{"role": "developer", "content": "S"},
                     {"role": "user", "content": [{"text": "q"}]},
                     {"role": "assistant", "content": "a"}]})",
                 RecordFormat::kMessages, {},
                 test::toy_model("{% for m in messages %}{% if m.role == 'user' %}" + of_user +
                                 "{% elif m.role == 'assistant' %}{{ m.content }}<|im_end|>"
                                 "{% endif %}{% endfor %}"))
        .at(0)
        .left_out.messages;
  };
  EXPECT_EQ(left_out("{{ m.content }}"), 1);
  EXPECT_EQ(left_out("{{ m.content | tojson }}"), 1) << "the text cannot be followed, but is there";
  EXPECT_EQ(left_out("?"), 2);
}

TEST(Thinking, KwargsReachTheTemplate) {
  const TextModel model = test::toy_model(test::kThinkingChatMl);
  const auto trained_with = [&](const char* record, Json kwargs) {
    return trained(
        build(record, RecordFormat::kMessages, {.chat_template_kwargs = std::move(kwargs)}, model)
            .at(0));
  };
  constexpr const char* kKept = "t1</think>a1<|im_end|>|t2</think>a2<|im_end|>";
  EXPECT_EQ(trained_with(kThinking, {{"preserve_thinking", true}}), kKept);
  Json record = Json::parse(kThinking);
  record["chat_template_kwargs"] = {{"preserve_thinking", true}};
  EXPECT_EQ(trained_with(record.dump().c_str(), {{"preserve_thinking", false}}),
            kKept);  // the record's own wins
}

TEST(Tools, TheTemplateIsTestedWithTheVariablesOfTheRun) {
  const auto sequence =
      build(R"({"messages": [{"role": "user", "content": [{"text": "q"}, {"text": "r"}]},
                {"role": "assistant", "content": [{"text": "a"}]}]})",
            RecordFormat::kMessages, {.chat_template_kwargs = {{"style", "brief"}}},
            test::toy_model("{% for m in messages %}{{ '<' + style + '>' + m.role + ':' }}"
                            "{% for p in m.content %}[{{ p.text }}]{% endfor %}<|im_end|>"
                            "{% endfor %}{% if add_generation_prompt %}{{ '<' + style + "
                            "'>assistant:' }}{% endif %}"))
          .at(0);
  EXPECT_EQ(sequence.text, "<brief>user:[q][r]<|im_end|><brief>assistant:[a]<|im_end|>");
}

TEST(Thinking, VariablesThatChangeNothingAreNamed) {
  const TextModel model =
      test::toy_model(std::string("{{ 'x' if enable_thinking }}") + test::kChatMl);
  EXPECT_TRUE(idle_template_variables(model, {{"enable_thinking", false}}).empty());
  const std::vector<std::string> idle =
      idle_template_variables(model, {{"thinking", true}, {"messages", Json::array()}});
  ASSERT_EQ(idle.size(), 2U);
  EXPECT_EQ(idle[0],
            "data.chat_template_kwargs.thinking has no effect: the chat template does not name it");
  EXPECT_NE(idle[1].find("messages has no effect: sftrun sets it"), std::string::npos);
}

TEST(Thinking, OfAFlagWhatNoModelReadsIsNamed) {
  const TextModel plain = test::toy_model(),
                  thinking = test::toy_model("{{ 'x' if enable_thinking }}"), none = [&] {
                    TextModel model = test::toy_model();
                    model.chat_template = nullptr;
                    return model;
                  }();
  const Json variables = {{"enable_thinking", false}, {"style", 1}};
  using Warnings = std::vector<std::string>;
  EXPECT_EQ(idle_template_flag({&plain, &thinking}, variables, true),
            (Warnings{"--chat-template-kwargs: `style` has no effect: the chat template does not "
                      "name it"}));
  EXPECT_EQ(idle_template_flag({&plain}, variables, true).size(), 2U);
  EXPECT_EQ(idle_template_flag({&thinking}, {{"enable_thinking", false}}, true), Warnings{});
  EXPECT_EQ(idle_template_flag({&thinking}, {{"enable_thinking", false}}, false),
            (Warnings{"--chat-template-kwargs has no effect: no prompt or record is a "
                      "conversation, so the chat template is not used"}));
  EXPECT_EQ(idle_template_flag({&none}, variables, true),
            (Warnings{"--chat-template-kwargs has no effect: the model has no chat template"}));
  EXPECT_EQ(idle_template_flag({&none}, Json::object(), true), Warnings{});
}

TEST(Thinking, TheVariablesOfARun) {
  config::DataConfig data;
  EXPECT_EQ(template_variables(data), Json::object());
  data.chat_template_kwargs = {{"enable_thinking", false}, {"keep_thinking", false}};
  EXPECT_EQ(template_variables(data), data.chat_template_kwargs);
  data.thinking = Thinking::kKeep;
  const Json both = template_variables(data);
  EXPECT_EQ(both["preserve_thinking"], true);
  EXPECT_EQ(both["keep_thinking"], false) << "the configured value";
  EXPECT_EQ(both["enable_thinking"], false);
}

TEST(Templates, SeeTheTimeOfTheRunNotOfTheMoment) {
  TextModel model = test::toy_model("{{ strftime_now('%Y') }}{{ messages[1].content }}");
  model.render_defaults.now_unix_s = 86400 * 366;  // 1971
  const auto sequences = build(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
      RecordFormat::kMessages, {}, model);
  ASSERT_EQ(sequences.size(), 1U);
  EXPECT_EQ(sequences[0].text, "1971a");
}

TEST(Strings, TextIsTrainedWithItsEnd) {
  const Sequence text = build(R"({"text": "hé"})", RecordFormat::kText).at(0);
  EXPECT_EQ(text.ids, (std::vector<int32_t>{'h', 0xC3, 0xA9, test::kEos}));
  EXPECT_EQ(text.mask, (std::vector<uint8_t>{1, 1, 1, 1}));
  const Sequence with_bos =
      build(R"({"text": "h"})", RecordFormat::kText, {}, test::toy_model("", true)).at(0);
  EXPECT_EQ(with_bos.ids, (std::vector<int32_t>{test::kBos, 'h', test::kEos}));
}

TEST(Strings, AnEndThatStandsThereIsNotDoubled) {
  EXPECT_EQ(build(R"({"text": "h</s>"})", RecordFormat::kText).at(0).ids,
            (std::vector<int32_t>{'h', test::kEos}));
  EXPECT_EQ(build(R"({"text": "h"})", RecordFormat::kText, {.append_eos = false}).at(0).ids,
            (std::vector<int32_t>{'h'}));
}

TEST(Strings, TheEndThatTheTokenizerAddsIsNotDoubled) {
  const TextModel model = test::toy_model("", /*adds_bos=*/true, /*adds_eos=*/true);
  const std::vector<int32_t> whole = {test::kBos, 'h', test::kEos};
  EXPECT_EQ(build(R"({"text": "h"})", RecordFormat::kText, {}, model).at(0).ids, whole);
  EXPECT_EQ(build(R"({"text": "h</s>"})", RecordFormat::kText, {}, model).at(0).ids, whole);
  EXPECT_EQ(build(R"({"text": "h"})", RecordFormat::kText, {.append_eos = false}, model).at(0).ids,
            (std::vector<int32_t>{test::kBos, 'h'}));
}

TEST(Strings, OnlyTheCompletionIsTrained) {
  constexpr const char* kRecord = R"({"prompt": "ab", "completion": "c"})";
  const TextModel model = test::toy_model("", /*adds_bos=*/true);
  const Sequence sequence = build(kRecord, RecordFormat::kPromptCompletion, {}, model).at(0);
  EXPECT_EQ(sequence.ids, (std::vector<int32_t>{test::kBos, 'a', 'b', 'c', test::kEos}));
  EXPECT_EQ(sequence.mask, (std::vector<uint8_t>{0, 0, 0, 1, 1}));
  for (const auto loss_on : {LossOnChoice::kLastAssistant, LossOnChoice::kCompletion}) {
    EXPECT_EQ(
        build(kRecord, RecordFormat::kPromptCompletion, {.loss_on = loss_on}, model).at(0).mask,
        sequence.mask);
  }
  EXPECT_EQ(build(kRecord, RecordFormat::kPromptCompletion, {.loss_on = LossOnChoice::kAll}, model)
                .at(0)
                .mask,
            (std::vector<uint8_t>{1, 1, 1, 1, 1}));
}

TEST(Sequences, PartsCoverTheTextInOrder) {
  for (const auto& [record, format] :
       {std::pair{kTwoTurns, RecordFormat::kMessages},
        std::pair{R"({"prompt": "ab", "completion": "c"})", RecordFormat::kPromptCompletion},
        std::pair{R"({"text": "abc"})", RecordFormat::kText}}) {
    const Sequence sequence = build(record, format, {.with_parts = true}).at(0);
    uint32_t at = 0;
    for (const auto& part : sequence.parts) {
      EXPECT_EQ(part.span.begin, at);
      at = part.span.end;
    }
    EXPECT_EQ(at, sequence.text.size());
  }
  const Sequence chat = build(kTwoTurns, RecordFormat::kMessages, {.with_parts = true}).at(0);
  const auto answer = std::find_if(chat.parts.begin(), chat.parts.end(), [](const auto& part) {
    return part.name == "assistant content";
  });
  ASSERT_NE(answer, chat.parts.end());
  EXPECT_EQ(answer->message, 2);
  EXPECT_EQ(chat.text.substr(answer->span.begin, answer->span.end - answer->span.begin), "a1");
}

TEST(Sequences, ErrorsNameTheRecord) {
  const auto where_of = [](const char* record, const TextModel& model) {
    try {
      build(record, RecordFormat::kMessages, {}, model);
    } catch (const DataError& error) {
      return error.where() + " " + error.message();
    }
    return std::string("no error");
  };
  const std::string no_template = where_of(kTwoTurns, test::toy_model(""));
  EXPECT_TRUE(no_template.starts_with("f.jsonl:3 ")) << no_template;
  EXPECT_NE(no_template.find("no chat template"), std::string::npos);
  const std::string refused =
      where_of(kTwoTurns, test::toy_model("{{ raise_exception('roles must be good') }}"));
  EXPECT_TRUE(refused.starts_with("f.jsonl:3")) << refused;
  EXPECT_NE(refused.find("roles must be good"), std::string::npos) << refused;
}

TEST(TextModels, AChatTemplateMayBeInADirectory) {
  const sftrun::test::TemporaryDirectory dir;
  const auto source = [&] { return test::toy_model(dir.path().string()).chat_template->source(); };
  test::expect_error<ConfigError>(
      source, {"the directory has no chat template", "name a directory with chat_template.jinja"});
  write_file_atomically(dir / "tokenizer_config.json",
                        R"({"chat_template": [{"name": "tool_use", "template": "a"}, )"
                        R"({"name": "default", "template": "b"}]})");
  EXPECT_EQ(source(), "b");
  write_file_atomically(dir / "tokenizer_config.json", R"({"chat_template": "c"})");
  EXPECT_EQ(source(), "c");
  write_file_atomically(dir / "chat_template.jinja", "d");
  EXPECT_EQ(source(), "d");
}

}  // namespace
}  // namespace sftrun::data
