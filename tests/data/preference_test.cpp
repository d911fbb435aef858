#include <gtest/gtest.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/batch_stream.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/preview.h"
#include "sftrun/data/sequence.h"
#include "support/expect_error.h"
#include "toy_model.h"

/// Preference records. tests/parity/dpo_parity.py compares tokens and labels with TRL's.
namespace sftrun::data {
namespace {

using config::Objective;

std::vector<Sequence> pair_of(const std::string& json, const TextModel& model = test::toy_model(),
                              SequenceOptions options = {}) {
  return SequenceBuilder(RecordFormat::kPreference, model, std::move(options))
      .build(Json::parse(json), "f.jsonl:3");
}

/// The text of the tokens with a label, and before '|' that of those without.
std::string text_and_labels(const Sequence& sequence) {
  std::string text;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    if (sequence.mask[i] && (i == 0 || !sequence.mask[i - 1])) text += '|';
    const auto [begin, end] = sequence.spans[i];
    text += begin == end && sequence.ids[i] == test::kBos
                ? "<s>"
                : sequence.text.substr(begin, end - begin);
  }
  return text;
}

void expect_pair(const std::vector<Sequence>& pair, const std::string& chosen,
                 const std::string& rejected) {
  ASSERT_EQ(pair.size(), 2U);
  EXPECT_EQ(text_and_labels(pair[0]), chosen);
  EXPECT_EQ(text_and_labels(pair[1]), rejected);
}

void expect_pair_refused(const std::string& json, const std::string& message) {
  try {
    pair_of(json);
    ADD_FAILURE() << json;
  } catch (const DataError& error) {
    EXPECT_NE(error.message().find(message), std::string::npos) << error.message();
    EXPECT_EQ(error.where(), "f.jsonl:3");
  }
}

TEST(PreferenceTexts, AnswersEndInEosAndCarryTheLabels) {
  const std::string record = R"({"prompt": "2+2=", "chosen": "4", "rejected": "five</s>"})";
  expect_pair(pair_of(record), "2+2=|4</s>", "2+2=|five</s>");
  expect_pair(pair_of(record, test::toy_model("", /*adds_bos=*/true)), "<s>2+2=|4</s>",
              "<s>2+2=|five</s>");
  expect_pair(pair_of(record, test::toy_model("", /*adds_bos=*/true, /*adds_eos=*/true)),
              "<s>2+2=|4</s>", "<s>2+2=|five</s>");
  expect_pair(pair_of(record, test::toy_model(), {.append_eos = false}), "2+2=|4", "2+2=|five</s>");
  const auto parts = pair_of(record, test::toy_model(), {.with_parts = true})[1].parts;
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].name + " " + parts[1].name, "prompt completion");
}

/// As trl.extract_prompt: up to the first difference, whose space belongs to the answer.
TEST(PreferenceTexts, ThePromptIsTheCommonBeginning) {
  expect_pair(pair_of(R"({"chosen": "It is good", "rejected": "It is bad"})"), "It is| good</s>",
              "It is| bad</s>");
  expect_pair(pair_of(R"({"chosen": "aé", "rejected": "aè"})"), "a|é</s>", "a|è</s>");
  expect_pair(pair_of(R"({"prompt": null, "chosen": "abcd", "rejected": "abc"})"), "ab|cd</s>",
              "ab|c</s>");
  expect_pair_refused(R"({"chosen": "", "rejected": "y"})", "is empty, and there is no \"prompt\"");
  expect_pair_refused(R"({"question": "q", "chosen": "yes", "rejected": "no"})",
                      "do not begin with the same text");
}

constexpr const char* kTwoAnswers = R"({"prompt": [{"role": "user", "content": "q"}],
  "chosen": [{"role": "assistant", "content": "yes"}], "rejected": [{"role": "assistant", "content": "no"}]})";
const std::string kAskedForAnswers = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";

TEST(PreferenceConversations, AreRenderedAndLabelledBehindTheGenerationPrompt) {
  expect_pair(pair_of(kTwoAnswers, test::toy_model(test::kChatMl, /*adds_bos=*/true)),
              kAskedForAnswers + "|yes<|im_end|>\n", kAskedForAnswers + "|no<|im_end|>\n");
  const auto pair = pair_of(kTwoAnswers, test::toy_model(), {.with_parts = true});
  const auto& parts = pair[1].parts;
  EXPECT_TRUE(std::any_of(parts.begin(), parts.end(), [](const Sequence::Part& part) {
    return part.name == "assistant content" && part.message == 1;
  }));
}

/// As Axolotl's and LLaMA-Factory's data sets have them.
TEST(PreferenceConversations, AnAnswerMayBeOneMessageOrItsText) {
  const auto whole = pair_of(kTwoAnswers);
  for (
      const char* answers :
      {R"("chosen": {"role": "assistant", "content": "yes"}, "rejected": {"role": "assistant", "content": "no"})",
       R"("chosen": "yes", "rejected": {"role": "assistant", "content": "no"})"}) {
    const auto pair =
        pair_of(std::string(R"({"prompt": [{"role": "user", "content": "q"}], )") + answers + "}");
    expect_pair(pair, text_and_labels(whole[0]), text_and_labels(whole[1]));
  }
  expect_pair_refused(R"({"chosen": {"role": "assistant", "content": "y"}, "rejected": "n"})",
                      "must be two strings or two lists of messages");
}

/// LLaMA-Factory's and Axolotl's layouts, without a mapping.
TEST(PreferenceConversations, TurnsMayStandBeforeAnswers) {
  const auto whole = pair_of(kTwoAnswers);
  const std::string sharegpt =
      R"("chosen": {"from": "gpt", "value": "yes"}, "rejected": {"from": "gpt", "value": "no"}})";
  const std::string messages =
      R"("chosen": {"role": "assistant", "content": "yes"}, "rejected": {"role": "assistant", "content": "no"}})";
  for (const std::string& record :
       {R"({"conversations": [{"from": "human", "value": "q"}], )" + sharegpt,
        R"({"messages": [{"role": "user", "content": "q"}], )" + messages,
        R"({"prompt": [{"from": "human", "value": "q"}], )" + sharegpt}) {
    expect_pair(pair_of(record), text_and_labels(whole[0]), text_and_labels(whole[1]));
  }
  const auto with_system = pair_of(
      R"({"system": "be", "conversations": [{"from": "human", "value": "q"}], )" + sharegpt);
  EXPECT_EQ(text_and_labels(with_system[1]),
            "<|im_start|>system\nbe<|im_end|>\n" + text_and_labels(whole[1]));
  EXPECT_TRUE(with_system[0].unread_columns.empty());
  const auto lists = pair_of(
      R"({"chosen": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "yes"}],
          "rejected": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "no"}]})");
  expect_pair(lists, text_and_labels(whole[0]), text_and_labels(whole[1]));
  expect_pair_refused(R"({"conversations": [{"from": "narrator", "value": "q"}], )" + sharegpt,
                      "prompt[0].from is \"narrator\", which is not a known role");
  // A prompt of its own is read, and whole conversations are not taken for it.
  const auto own = pair_of(
      R"({"prompt": [{"role": "user", "content": "q"}], "messages": [{"role": "user", "content": "x"}], )" +
      messages);
  expect_pair(own, text_and_labels(whole[0]), text_and_labels(whole[1]));
}

/// The columns of Intel/orca_dpo_pairs, with `data.fields: {instruction: question}`.
TEST(PreferenceConversations, AlpacaColumnsArePrompts) {
  const std::string record =
      R"({"instruction": "q", "input": "i", "system": "be", "chosen": "yes", "rejected": "no"})";
  const std::string asked =
      "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nq\n\ni<|im_end|>\n<|im_start|>"
      "assistant\n";
  expect_pair(pair_of(record), asked + "|yes<|im_end|>\n", asked + "|no<|im_end|>\n");
  EXPECT_TRUE(pair_of(record)[0].unread_columns.empty());
  TextModel base = test::toy_model();
  base.chat_template = nullptr;
  expect_pair(pair_of(record, base), "be\n\nq\n\ni\n\n|yes</s>", "be\n\nq\n\ni\n\n|no</s>");
  const auto judged = pair_of(record, test::toy_model(), {.form = config::ExampleForm::kJudged});
  expect_pair(judged, asked + "|yes<|im_end|>\n", asked + "|no<|im_end|>\n");
  const Json json = Json::parse(record);
  EXPECT_TRUE(is_rendered(json, RecordFormat::kPreference, /*has_chat_template=*/true));
  EXPECT_FALSE(is_rendered(json, RecordFormat::kPreference, /*has_chat_template=*/false));
  const auto with_prompt = pair_of(
      R"({"prompt": "p", "instruction": "q", "input": "i", "chosen": "yes", "rejected": "no"})");
  expect_pair(with_prompt, "p|yes</s>", "p|no</s>");
  EXPECT_EQ(with_prompt[0].unread_columns, std::vector<std::string>{"input"});
}

TEST(PreferenceConversations, ThePromptMayBeImplicit) {
  const std::string turns =
      R"([{"content": "q", "role": "user"}, {"role": "assistant", "content": )";
  const std::string
      chosen =
          R"("chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}])",
      rejected = R"("rejected": )" + turns + R"("no"}])";
  expect_pair(pair_of("{" + chosen + ", " + rejected + "}"), kAskedForAnswers + "|yes<|im_end|>\n",
              kAskedForAnswers + "|no<|im_end|>\n");
  // As HuggingFaceH4/ultrafeedback_binarized has it: the prompt also as a text.
  expect_pair(pair_of(R"({"prompt": "q", )" + chosen + ", " + rejected + "}"),
              kAskedForAnswers + "|yes<|im_end|>\n", kAskedForAnswers + "|no<|im_end|>\n");
  // A key that is null is no difference.
  expect_pair(pair_of(R"({"prompt": null, "chosen": [{"role": "user", "content": "q", "name": null},
                            {"role": "assistant", "content": "yes"}], )" +
                      rejected + "}"),
              kAskedForAnswers + "|yes<|im_end|>\n", kAskedForAnswers + "|no<|im_end|>\n");
  expect_pair_refused(R"({"chosen": [{"role": "user", "content": "a"}],
                     "rejected": [{"role": "user", "content": "b"}]})",
                      "do not begin with the same messages");
  expect_pair_refused(R"({"prompt": "q", "chosen": [{"role": "assistant", "content": "a"}],
                     "rejected": [{"role": "assistant", "content": "b"}]})",
                      "a \"prompt\" (string) is not read beside lists of messages");
}

/// A template that renders the prompt alone differently, as that of Gemma 4: what is behind the
/// last common token carries a label, in both sequences alike.
TEST(PreferenceConversations, LabelsBeginWhereTheTokensDiverge) {
  const TextModel model = test::toy_model(
      "{%- for m in messages -%}{{ m.role[0] ~ ':' ~ m.content ~ '\n' }}{%- endfor -%}"
      "{%- if add_generation_prompt -%}{{ 'a:<think></think>' }}{%- endif -%}");
  expect_pair(pair_of(kTwoAnswers, model), "u:q\na:|yes\n", "u:q\na:|no\n");
  const std::string thinks = R"({"prompt": [{"role": "user", "content": "q"}],
    "chosen": [{"role": "assistant", "content": "<think></think>yes"}],
    "rejected": [{"role": "assistant", "content": "<no"}]})";
  expect_pair(pair_of(thinks, model), "u:q\na:<|think></think>yes\n", "u:q\na:<|no\n");
}

TEST(PreferenceConversations, EmptyReasoningOfTheChosenAnswerAlone) {
  const TextModel model = test::toy_model(
      "{% for m in messages %}{% set a = m.role == 'assistant' %}{{ m.role }}:"
      "{% if a %}{{ '<think>' + (m.reasoning_content or '') + '</think>' }}{% endif %}"
      "{{ m.content }}|{% endfor %}"
      "{% if add_generation_prompt %}assistant:<think>{% endif %}");
  const auto pair = [&](const std::string& reasoning, config::EmptyThinking empty_thinking) {
    return pair_of(R"({"prompt": [{"role": "user", "content": "q"}],
                       "chosen": [{"role": "assistant", "content": "a"}],
                       "rejected": [{"role": "assistant", "content": "b", "reasoning_content": ")" +
                       reasoning + "\"}]}",
                   model, {.empty_thinking = empty_thinking});
  };
  using config::EmptyThinking;
  const auto both = pair("", EmptyThinking::kDrop);
  EXPECT_EQ(both[0].num_empty_thinking, 0) << "what both have in common trains nothing";
  EXPECT_NE(text_and_labels(both[0]).find("|</think>a"), std::string::npos);
  const auto kept = pair("r", EmptyThinking::kWarn), dropped = pair("r", EmptyThinking::kDrop);
  EXPECT_EQ(kept[0].num_empty_thinking, 1);
  EXPECT_NE(text_and_labels(kept[0]).find("|</think>a"), std::string::npos);
  EXPECT_NE(text_and_labels(dropped[0]).find("</think>|a"), std::string::npos);
  EXPECT_NE(text_and_labels(dropped[1]).find("|r</think>b"), std::string::npos);
}

TEST(PreferenceConversations, ReadToolsAndKwargs) {
  const TextModel model = test::toy_model(
      "{{ tools[0].name ~ style ~ messages[-1].content }}"
      "{%- if add_generation_prompt -%}{{ '!' }}{%- endif -%}");
  const std::string tail =
      R"("chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", "content": "b"}]})";
  const std::string head =
      R"({"prompt": [{"role": "user", "content": "q"}], "chat_template_kwargs": {"style": "-"}, )";
  expect_pair(pair_of(head + R"("tools": [{"name": "f"}], )" + tail, model), "f-|a", "f-|b");
  expect_pair(pair_of(head + R"("tools": "[{\"name\": \"f\"}]", )" + tail, model), "f-|a", "f-|b");
}

TEST(PreferenceTexts, ThatAreNotRenderedAreNoted) {
  const auto first = [](const std::string& prompt, const TextModel& model = test::toy_model()) {
    return pair_of(Json({{"prompt", prompt}, {"chosen", "a"}, {"rejected", "b"}}).dump(), model)[0];
  };
  TextModel base = test::toy_model();
  base.chat_template = nullptr;
  EXPECT_TRUE(first("q").is_outside_template);
  EXPECT_TRUE(first("q", test::toy_model(test::kChatMl, /*adds_bos=*/true)).is_outside_template);
  EXPECT_FALSE(first("q", base).is_outside_template);
  EXPECT_FALSE(first("<|im_start|>user\nq").is_outside_template) << "it is rendered already";
  EXPECT_FALSE(pair_of(kTwoAnswers)[0].is_outside_template);
  for (const char* list : {R"([{"role": "user", "content": "q"}])", R"([{'content': 'q'}])"}) {
    EXPECT_TRUE(first(list).has_messages_as_text) << list;
    EXPECT_FALSE(first(list).is_outside_template) << "one warning";
  }
  EXPECT_FALSE(first(R"([{"name": "f"}])").has_messages_as_text);
  const Sequence answer =
      SequenceBuilder(RecordFormat::kPromptCompletion, test::toy_model(), {})
          .build(Json::parse(R"({"prompt": "q", "completion": " [ {\"from\": 1}]"})"), "f:1")[0];
  EXPECT_TRUE(answer.has_messages_as_text);
  EXPECT_FALSE(answer.is_outside_template) << "the format's rule";
}

/// An empty rejected answer trains the model to go on.
TEST(PreferenceRecords, ChosenAnswersAloneShouldNotBeEmpty) {
  const auto empty = [](const std::string& chosen, const std::string& rejected) {
    const auto pair =
        pair_of(Json({{"prompt", "p"}, {"chosen", chosen}, {"rejected", rejected}}).dump());
    return pair[0].num_empty_answers + pair[1].num_empty_answers;
  };
  EXPECT_EQ(empty("", "b"), 1);
  EXPECT_EQ(empty("a", ""), 0);
  const auto turns = pair_of(R"({"prompt": [{"role": "user", "content": "q"}],
    "chosen": [{"role": "assistant", "content": "yes"}], "rejected": [{"role": "assistant", "content": ""}]})");
  EXPECT_EQ(turns[0].num_empty_answers + turns[1].num_empty_answers, 0);
}

TEST(PreferenceRecords, OfOtherShapesAreRefused) {
  expect_pair_refused(R"({"prompt": "p", "chosen": "a"})", "has no \"rejected\"");
  expect_pair_refused(R"({"chosen": "a", "rejected": []})", "must be two strings or two lists");
  expect_pair_refused(R"({"prompt": [], "chosen": "a", "rejected": "b"})",
                      "\"prompt\" is of type array");
  expect_pair_refused(R"({"chosen": [], "rejected": []})", "\"chosen\" is empty");
}

TEST(PreferenceRecords, AreDetectedForDpo) {
  const auto detect = [](const char* json, Objective objective) {
    return detect_format(Json::parse(json), "f:1", objective).format;
  };
  const char* both = R"({"messages": [], "chosen": "a", "rejected": "b"})";
  EXPECT_EQ(detect(both, Objective::kDpo), RecordFormat::kPreference);
  EXPECT_EQ(detect(both, Objective::kSft), RecordFormat::kMessages);
  EXPECT_EQ(name_of(RecordFormat::kPreference), "preference");
  try {
    detect(R"({"text": "t"})", Objective::kDpo);
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_NE(error.message().find("which train.objective dpo needs"), std::string::npos);
    EXPECT_NE(error.fix().find("rejected: COLUMN"), std::string::npos);
  }
  test::expect_error<DataError>(
      [&] { detect(R"({"prompt": "p", "chosen": "a", "rejected": null})", Objective::kDpo); },
      {"has \"chosen\" but no value for \"rejected\"", "data.fields: {rejected: COLUMN}"});
  test::expect_error<DataError>([&] { detect(R"({"rejected": "a"})", Objective::kDpo); },
                                {"has \"rejected\" but no value for \"chosen\""});
}

class PreferenceData : public ::testing::Test {
 protected:
  PreferenceData() {
    log::configure({.console = log::Level::kOff});
    config_.model.max_seq_len = 12;
    config_.data.cache_dir = (dir_ / "cache").string();
    config_.train.objective = Objective::kDpo;
    config_.train.global_batch_size.value = 2;
  }

  config::DataSource write(const std::vector<std::array<std::string, 3>>& records) {
    std::string content;
    for (const auto& [prompt, chosen, rejected] : records)
      content +=
          Json({{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}).dump() + "\n";
    write_file_atomically(dir_ / "train.jsonl", content);
    return {.path = (dir_ / "train.jsonl").string()};
  }
  Dataset load(const config::DataSource& source) {
    return load_dataset(config_, {source}, /*is_validation=*/false, model_, 2);
  }
  std::string text_of(const ExampleView& example) const {
    std::string text;
    for (int64_t i = 0; i < example.size(); ++i)
      if (example.token(i) < 256) text += static_cast<char>(example.token(i));
    return text;
  }
  static std::vector<std::array<std::string, 3>> pairs(int count) {
    std::vector<std::array<std::string, 3>> records;
    for (int i = 0; i < count; ++i) {
      const std::string number = std::to_string(i);
      records.push_back({"p" + number, "c", std::string(static_cast<size_t>(1 + i % 7), 'r')});
    }
    return records;
  }

  test::TemporaryDirectory dir_;
  config::RunConfig config_;
  TextModel model_ = test::toy_model();
};

TEST_F(PreferenceData, PairsStandTogether) {
  const Dataset data = load(write(pairs(3)));
  ASSERT_EQ(data.examples().size(), 6);
  EXPECT_EQ(data.parts()[0].format, RecordFormat::kPreference);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(data.examples().stored(i).record, i / 2);
    EXPECT_EQ(text_of(data.examples()[i]).substr(0, 3),
              "p" + std::to_string(i / 2) + (i % 2 == 0 ? "c" : "r"));
  }
  EXPECT_EQ(data.examples().stored(0).label_tokens, 2U);  // c and the EOS
}

TEST_F(PreferenceData, APairIsLeftOutAsAWhole) {
  const std::string too_long(20, 'x');
  const config::DataSource source =
      write({{"p", "a", "b"}, {"p", too_long, "b"}, {"q", "c", too_long}});
  const Dataset data = load(source);
  EXPECT_EQ(data.examples().size(), 2);
  EXPECT_EQ(data.stats().num_dropped_too_long, 2);
  const DatasetTrial trial = try_dataset(config_, source, false, model_);
  EXPECT_TRUE(std::any_of(trial.warnings.begin(), trial.warnings.end(), [](const auto& warning) {
    return warning.find("2 examples left out, because the other answer of the pair is left out") !=
           std::string::npos;
  })) << join(trial.warnings, "\n");
  config_.data.too_long = config::TooLong::kTruncate;
  EXPECT_EQ(load(source).examples().size(), 6);
  // Nothing is left of a pair whose prompt alone is too long.
  EXPECT_EQ(load(write({{"p", "a", "b"}, {too_long, "a", "b"}})).examples().size(), 2);
}

TEST_F(PreferenceData, SplitsKeepPairs) {
  const auto [train, val] = split_dataset(load(write(pairs(20))), 0.25, 3);
  EXPECT_EQ(train.examples().size(), 30);
  EXPECT_EQ(val.examples().size(), 10);
  for (const Dataset* part : {&train, &val}) {
    for (int64_t i = 0; i < part->examples().size(); i += 2)
      EXPECT_EQ(part->examples().stored(i).record, part->examples().stored(i + 1).record);
  }
}

TEST_F(PreferenceData, AreStreamedInPairs) {
  config_.data.train = {write(pairs(30))};
  config_.data.streaming = true;
  config_.data.shuffle_buffer = 8;
  for (const bool packing : {false, true}) {
    config_.data.packing = packing;
    BatchStream stream(config_, model_, 1, nullptr);
    for (int step = 0; step < 9; ++step) {
      const StepBatch batch = stream.next();
      ASSERT_EQ(batch.bins.size(), 2U);
      for (const Bin& bin : batch.bins) {
        ASSERT_EQ(bin.size() % 2, 0U);
        EXPECT_TRUE(packing || bin.size() == 2);
        for (size_t i = 0; i < bin.size(); i += 2) {
          EXPECT_EQ(bin[i + 1], bin[i] + 1);
          EXPECT_EQ(text_of(batch.examples[bin[i]]).back(), 'c');
          EXPECT_EQ(text_of(batch.examples[bin[i + 1]]).back(), 'r');
        }
      }
    }
  }
}

TEST_F(PreferenceData, PreviewsShowBothSequences) {
  const config::DataSource source = write({{"p", "a", "b"}, {"p", std::string(20, 'x'), "b"}});
  const Preview preview = preview_dataset(config_, source, /*is_validation=*/false, model_, 2);
  ASSERT_EQ(preview.sequences.size(), 4U);
  EXPECT_EQ(preview.sequences[0].place, "line 1, chosen");
  EXPECT_EQ(preview.sequences[1].place, "line 1, rejected");
  EXPECT_EQ(preview.sequences[1].left_out, "");
  EXPECT_NE(preview.sequences[2].left_out.find("more than model.max_seq_len"), std::string::npos);
  EXPECT_EQ(preview.sequences[3].left_out, "the other answer of its pair is left out");
}

TEST_F(PreferenceData, AreToldApartWithoutDpo) {
  const config::DataSource source = write({{"p", "a", "b"}});
  config_.train.objective = Objective::kSft;
  try {
    load(source);
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_NE((error.message() + error.fix()).find("train.objective: dpo"), std::string::npos)
        << error.message() << error.fix();
  }
}

TEST_F(PreferenceData, ColumnsAreRenamed) {
  write_file_atomically(dir_ / "train.jsonl", R"({"q": "p", "win": "a", "lose": "b"})"
                                              "\n");
  config_.data.fields = {{"prompt", "q"}, {"chosen", "win"}, {"rejected", "lose"}};
  EXPECT_EQ(load({.path = (dir_ / "train.jsonl").string()}).examples().size(), 2);
  write_file_atomically(
      dir_ / "train.jsonl",
      R"({"chosen": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
                            "rejected": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "b"}]})"
      "\n");
  config_.data.fields = {
      {"role", "from"}, {"content", "value"}, {"roles", {{"human", "user"}, {"gpt", "assistant"}}}};
  config_.model.max_seq_len = 128;
  std::string content = read_text_file(dir_ / "train.jsonl");
  std::erase(content, '\n');
  write_file_atomically(dir_ / "train.jsonl", content + "\n");
  EXPECT_EQ(load({.path = (dir_ / "train.jsonl").string()}).examples().size(), 2);
  // A named question asks, whatever the record calls "prompt".
  write_file_atomically(dir_ / "train.jsonl",
                        R"({"question": "q", "prompt": "p", "chosen": "a", "rejected": "b"})"
                        "\n");
  config_.data.fields = {{"instruction", "question"}};
  const Dataset asked = load({.path = (dir_ / "train.jsonl").string()});
  EXPECT_EQ(text_of(asked.examples()[0]), "user\nq\nassistant\na\n");
}

/// Of one record each, so that a warning can be told.
TEST_F(PreferenceData, DoubtfulPairsAreWarnedOf) {
  const auto warnings = [&](const std::array<std::string, 3>& record) {
    return join(try_dataset(config_, write({record}), false, model_).warnings, "\n");
  };
  EXPECT_EQ(warnings({"<|im_start|>", "a", "b"}), "");
  EXPECT_NE(warnings({"p", "a", "b"}).find("records of strings are trained on without"),
            std::string::npos);
  EXPECT_EQ(warnings({"<|im_start|>", "a", ""}), "");
  EXPECT_NE(warnings({"<|im_start|>", "", "b"}).find("answers are empty (1)"), std::string::npos);
  EXPECT_NE(warnings({"<|im_start|>", "a", "a"}).find("do not say which answer is better"),
            std::string::npos);
  EXPECT_NE(warnings({"[{'role'", "a", "b"}).find("texts begin like lists of messages"),
            std::string::npos);
}

}  // namespace
}  // namespace sftrun::data
