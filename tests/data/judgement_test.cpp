#include "judgement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/batch_stream.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/preview.h"
#include "sftrun/data/sequence.h"
#include "support/expect_error.h"
#include "toy_model.h"

/// Records of judged answers. tests/parity/kto_records_parity.py compares tokens and labels with TRL's.
namespace sftrun::data {
namespace {

using config::ExampleForm;
using config::Objective;

std::vector<Sequence> judged(const std::string& json, RecordFormat format,
                             const TextModel& model = test::toy_model(),
                             SequenceOptions options = {}) {
  options.form = ExampleForm::kJudged;
  return SequenceBuilder(format, model, std::move(options)).build(Json::parse(json), "f.jsonl:3");
}

/// "+" or "-", then the text of the tokens, '|' where labels begin.
std::string shown(const Sequence& sequence) {
  std::string text = sequence.judgement == Judgement::kDesirable     ? "+"
                     : sequence.judgement == Judgement::kUndesirable ? "-"
                                                                     : "?";
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    if (sequence.mask[i] && (i == 0 || !sequence.mask[i - 1])) text += '|';
    const auto [begin, end] = sequence.spans[i];
    text += begin == end ? "<s>" : sequence.text.substr(begin, end - begin);
  }
  return text;
}

std::string shown(const std::vector<Sequence>& sequences) {
  std::vector<std::string> texts;
  for (const Sequence& sequence : sequences) texts.push_back(shown(sequence));
  return join(texts, "; ");
}

void expect_refused(const std::string& json, RecordFormat format,
                    std::initializer_list<std::string> words) {
  test::expect_error<DataError>([&] { judged(json, format); }, words);
}

TEST(Judgements, AreBooleansAndWhatTablesWriteForThem) {
  const auto judgement = [](const char* value) {
    return judgement_of(Json::parse(std::string("{\"label\": ") + value + "}"), "f:1");
  };
  for (const char* yes :
       {"true", "1", "1.0", R"("true")", R"("True")", R"(" TRUE ")", R"("1")", R"("1.0")"})
    EXPECT_TRUE(judgement(yes)) << yes;
  for (const char* no : {"false", "0", "0.0", R"("false")", R"("False")", R"("0")", R"("0.0")"})
    EXPECT_FALSE(judgement(no)) << no;
  for (const char* other : {"2", "-1", "0.5", R"("yes")", R"("")", "[]", "[true]", R"({"a": 1})"})
    test::expect_error<DataError>([&] { judgement(other); },
                                  {"\"label\" must be true or false, not", "f:1"});
  EXPECT_TRUE(judgement_of({{"kto_tag", true}}, "f:1")) << "LLaMA-Factory's word";
  EXPECT_FALSE(judgement_of({{"label", false}, {"kto_tag", true}}, "f:1"));
  EXPECT_TRUE(judgement_of({{"label", nullptr}, {"kto_tag", true}}, "f:1"));
  for (const Json& without : {Json{{"completion", "a"}}, Json{{"label", nullptr}}})
    test::expect_error<DataError>([&] { judgement_of(without, "f:1"); },
                                  {"has no \"label\", which train.objective kto needs", "f:1",
                                   "data.fields: {label: COLUMN}", "train.objective: sft"});
}

/// Numbers beside a conversation may be the classes of another task.
TEST(Judgements, AreFoundInRecordsWithoutAnObjective) {
  EXPECT_TRUE(has_judgement({{"completion", "a"}, {"label", false}}));
  EXPECT_TRUE(has_judgement({{"completion", "a"}, {"label", "True"}}));
  EXPECT_TRUE(has_judgement({{"completion", "a"}, {"label", 1}}));
  EXPECT_TRUE(has_judgement({{"messages", "a"}, {"kto_tag", 0}}));
  EXPECT_FALSE(has_judgement({{"messages", "a"}, {"label", 1}}));
  EXPECT_FALSE(has_judgement({{"completion", "a"}, {"label", 2}}));
  EXPECT_FALSE(has_judgement({{"completion", "a"}, {"label", "good"}}));
  EXPECT_FALSE(has_judgement({{"chosen", "a"}, {"rejected", "b"}, {"label", true}}));
}

TEST(JudgedRecords, OfTexts) {
  const char* good = R"({"prompt": "2+2=", "completion": "4", "label": true})";
  const char* bad = R"({"prompt": "2+2=", "completion": "5</s>", "label": 0})";
  constexpr auto kFormat = RecordFormat::kPromptCompletion;
  EXPECT_EQ(shown(judged(good, kFormat)), "+2+2=|4</s>");
  EXPECT_EQ(shown(judged(bad, kFormat)), "-2+2=|5</s>");
  const TextModel with_bos = test::toy_model("", /*adds_bos=*/true);
  EXPECT_EQ(shown(judged(good, kFormat, with_bos)), "+<s>2+2=|4</s>");
  EXPECT_EQ(judged(good, kFormat, with_bos).front().num_prompt_tokens, 5);
  EXPECT_EQ(
      judged(R"({"prompt": "", "completion": "4", "label": 1})", kFormat)[0].num_prompt_tokens, 0);
}

constexpr const char* kAsked = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";

TEST(JudgedRecords, OfConversations) {
  const std::string asked = kAsked, answered = "|yes<|im_end|>\n";
  const std::string prompt = R"({"prompt": [{"role": "user", "content": "q"}], )";
  const std::string completion = R"("completion": [{"role": "assistant", "content": "yes"}], )";
  constexpr auto kFormat = RecordFormat::kPromptCompletion;
  EXPECT_EQ(shown(judged(prompt + completion + R"("label": true})", kFormat)),
            "+" + asked + answered);
  for (const char* answer :
       {R"("completion": {"role": "assistant", "content": "yes"}, )", R"("completion": "yes", )"})
    EXPECT_EQ(shown(judged(prompt + answer + R"("label": true})", kFormat)),
              "+" + asked + answered);
  // As argilla/kto-mix-15k: the text of the prompt beside a whole conversation.
  EXPECT_EQ(shown(judged(R"({"prompt": "q", "completion": [{"role": "user", "content": "q"},
                             {"role": "assistant", "content": "yes"}], "label": false})",
                         kFormat)),
            "-" + asked + answered);
}

TEST(JudgedRecords, OfConversationsJudgeTheLastTurn) {
  const std::string before = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
  const std::string turns = R"([{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "q"},
    {"role": "assistant", "content": "yes"}])";
  EXPECT_EQ(
      shown(judged(R"({"label": false, "messages": )" + turns + "}", RecordFormat::kMessages)),
      "-" + before + kAsked + "|yes<|im_end|>\n");
  EXPECT_EQ(shown(judged(R"({"kto_tag": true, "conversations": [{"from": "human", "value": "q"},
                             {"from": "gpt", "value": "yes"}]})",
                         RecordFormat::kShareGpt)),
            std::string("+") + kAsked + "|yes<|im_end|>\n");
  EXPECT_EQ(shown(judged(R"({"instruction": "q", "output": "yes", "label": true})",
                         RecordFormat::kAlpaca)),
            std::string("+") + kAsked + "|yes<|im_end|>\n");
}

/// Each answer is behind the prompt by itself, as TRL's unpair_preference_dataset has it.
TEST(JudgedRecords, OfPairsAreBothAnswers) {
  EXPECT_EQ(shown(judged(R"({"prompt": "2+2=", "chosen": "4", "rejected": "5"})",
                         RecordFormat::kPreference)),
            "+2+2=|4</s>; -2+2=|5</s>");
  EXPECT_EQ(shown(judged(R"({"chosen": "It is good", "rejected": "It is bad", "label": false})",
                         RecordFormat::kPreference)),
            "+It is| good</s>; -It is| bad</s>");
  const TextModel model = test::toy_model(
      "{%- for m in messages -%}{{ m.role[0] ~ ':' ~ m.content ~ '\n' }}{%- endfor -%}"
      "{%- if add_generation_prompt -%}{{ 'a:<think></think>' }}{%- endif -%}");
  EXPECT_EQ(shown(judged(R"({"prompt": [{"role": "user", "content": "q"}],
                             "chosen": [{"role": "assistant", "content": "<think></think>yes"}],
                             "rejected": [{"role": "assistant", "content": "<no"}]})",
                         RecordFormat::kPreference, model)),
            "+u:q\na:<think></think>|yes\n; -u:q\na:<|no\n")
      << "a pair's labels would begin at the same token";
}

TEST(JudgedRecords, OfOtherShapesAreRefused) {
  using enum RecordFormat;
  expect_refused(R"({"messages": [{"role": "assistant", "content": "a"},
                     {"role": "user", "content": "q"}], "label": true})",
                 kMessages, {"ends with a turn of the role `user`", "f.jsonl:3"});
  expect_refused(R"({"messages": [{"role": "assistant", "content": "a"}], "label": true})",
                 kMessages, {"nothing before the answer that is judged", "f.jsonl:3"});
  expect_refused(R"({"prompt": "q", "completion": "a"})", kPromptCompletion,
                 {"has no \"label\", which train.objective kto needs", "f.jsonl:3"});
  expect_refused(R"({"prompt": "q", "completion": "a", "label": "maybe"})", kPromptCompletion,
                 {"\"label\" must be true or false, not \"maybe\"", "f.jsonl:3"});
  expect_refused(R"({"prompt": "q", "label": true})", kPromptCompletion,
                 {"has no \"completion\"", "f.jsonl:3"});
}

TEST(JudgedRecords, OnlyDesirableAnswersTrainToBeEmptyOrNotToReason) {
  const auto answer = [](const char* content, bool label,
                         config::EmptyThinking empty = config::EmptyThinking::kWarn) {
    const Json record = {{"prompt", {{{"role", "user"}, {"content", "q"}}}},
                         {"completion", {{{"role", "assistant"}, {"content", content}}}},
                         {"label", label}};
    return judged(record.dump(), RecordFormat::kPromptCompletion, test::toy_model(),
                  {.empty_thinking = empty})
        .front();
  };
  EXPECT_EQ(answer("", true).num_empty_answers, 1);
  EXPECT_EQ(answer("", false).num_empty_answers, 0);
  constexpr const char* kEmpty = "<think></think>a";
  EXPECT_EQ(answer(kEmpty, true).num_empty_thinking, 1);
  EXPECT_EQ(answer(kEmpty, false).num_empty_thinking, 0);
  const auto drop = config::EmptyThinking::kDrop;
  EXPECT_TRUE(shown(answer(kEmpty, true, drop)).find("</think>|a") != std::string::npos);
  EXPECT_TRUE(shown(answer(kEmpty, false, drop)).find("|<think></think>a") != std::string::npos);
}

TEST(JudgedRecords, FlagsOfTurnsAreNotRead) {
  const char* json = R"({"messages": [{"role": "user", "content": "q"},
    {"role": "assistant", "content": "a", "weight": 0}], "label": false})";
  const Sequence sequence = judged(json, RecordFormat::kMessages).front();
  EXPECT_EQ(sequence.unread_turn_keys, std::vector<std::string>{"weight"});
  EXPECT_TRUE(sequence.unread_columns.empty()) << "the label is read";
  EXPECT_NE(shown(sequence).find('|'), std::string::npos);
  const Sequence of_sft = SequenceBuilder(RecordFormat::kMessages, test::toy_model(), {})
                              .build(Json::parse(json), "f:1")
                              .front();
  EXPECT_EQ(of_sft.unread_columns, std::vector<std::string>{"label"});
  EXPECT_EQ(of_sft.judgement, Judgement::kNone);
}

TEST(JudgedRecords, AreDetected) {
  using enum RecordFormat;
  const auto detect = [](const char* json, Objective objective = Objective::kKto) {
    return detect_format(Json::parse(json), "f:1", objective);
  };
  EXPECT_EQ(detect(R"({"prompt": "p", "completion": "c", "label": true})").format,
            kPromptCompletion);
  EXPECT_EQ(detect(R"({"prompt": "p", "completion": "c", "label": true})").reason,
            "it has \"prompt\" and \"completion\" and a label");
  EXPECT_EQ(detect(R"({"messages": [], "label": true})").format, kMessages);
  EXPECT_EQ(detect(R"({"conversations": [], "kto_tag": true})").format, kShareGpt);
  EXPECT_EQ(detect(R"({"instruction": "i", "output": "o", "label": 1})").format, kAlpaca);
  EXPECT_EQ(detect(R"({"messages": [], "chosen": "a", "rejected": "b", "label": 1})").format,
            kPreference);
  const auto refused = [&](const char* json, std::initializer_list<std::string> words,
                           Objective objective = Objective::kKto) {
    test::expect_error<DataError>([&] { detect(json, objective); }, words);
  };
  refused(R"({"prompt": "p", "completion": "c"})",
          {"has no \"label\", which train.objective kto needs", "train.objective: sft"});
  refused(R"({"text": "t", "label": true})", {"no prompt and answer that it judges"});
  refused(R"({"prompt_ids": [1], "completion_ids": [2], "label": true})", {"already tokenized"});
  refused(R"({"prompt": "p", "completion": "c", "label": true})",
          {"has no \"chosen\" and \"rejected\"", "train.objective: kto"}, Objective::kDpo);
  refused(R"({"prompt": "p", "completion": "c", "label": 2})",
          {"has no \"chosen\" and \"rejected\"", "train.objective: sft"}, Objective::kDpo);
}

class JudgedData : public ::testing::Test {
 protected:
  JudgedData() {
    log::configure({.console = log::Level::kOff});
    config_.model.max_seq_len = 12;
    config_.data.cache_dir = (dir_ / "cache").string();
    config_.train.objective = Objective::kKto;
    config_.train.global_batch_size.value = 2;
  }

  config::DataSource write(const std::string& content, const char* name = "train.jsonl") {
    write_file_atomically(dir_ / name, content);
    return {.path = (dir_ / name).string()};
  }
  /// Desirable and undesirable answers in turn.
  static std::string records(int count) {
    std::string content;
    for (int i = 0; i < count; ++i)
      content += Json({{"prompt", "p" + std::to_string(i)},
                       {"completion", std::string(static_cast<size_t>(1 + i % 5), 'c')},
                       {"label", i % 2 == 0}})
                     .dump() +
                 "\n";
    return content;
  }
  Dataset load(const config::DataSource& source) {
    return load_dataset(config_, {source}, /*is_validation=*/false, model_, 2);
  }
  static std::vector<int> judgements(const ExampleStore& examples) {
    std::vector<int> all;
    for (int64_t i = 0; i < examples.size(); ++i)
      all.push_back(static_cast<Judgement>(examples.stored(i).judgement) == Judgement::kDesirable);
    return all;
  }
  std::string warnings(const config::DataSource& source) {
    config_.data.train = {source};
    return join(try_dataset(config_, source, /*is_validation=*/false, model_).warnings, "\n");
  }

  test::TemporaryDirectory dir_;
  config::RunConfig config_;
  TextModel model_ = test::toy_model();
};

TEST_F(JudgedData, JudgementsAreCached) {
  const config::DataSource source = write(records(6));
  for (const bool cached : {false, true}) {
    const Dataset data = load(source);
    EXPECT_EQ(judgements(data.examples()), (std::vector<int>{1, 0, 1, 0, 1, 0})) << cached;
    EXPECT_EQ(data.examples().stored(4).answer_begin, 2U);
    EXPECT_EQ(data.stats().num_desirable, 3);
    EXPECT_EQ(data.stats().num_undesirable, 3);
  }
  config_.train.objective = Objective::kSft;
  EXPECT_EQ(load(source).stats().num_desirable, 0) << "another entry of the cache";
}

/// A file with the layout of an earlier version is tokenized again.
TEST_F(JudgedData, AnOlderCacheIsReplaced) {
  const config::DataSource source = write(records(6));
  load(source);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "cache")) {
    if (entry.path().filename() != "examples") continue;
    std::string bytes = read_text_file(entry.path());
    ASSERT_TRUE(bytes.starts_with("sftrunE6"));
    bytes[7] = bytes.back() = '3';
    write_file_atomically(entry.path(), bytes);
    ++files;
  }
  EXPECT_EQ(files, 1);
  EXPECT_EQ(judgements(load(source).examples()), (std::vector<int>{1, 0, 1, 0, 1, 0}));
}

TEST_F(JudgedData, PairsAreTakenApart) {
  config_.model.max_seq_len = 8;
  const Dataset data = load(write(R"({"prompt": "p", "chosen": "a", "rejected": "b"}
{"prompt": "q", "chosen": "c", "rejected": "longer than that"}
)"));
  EXPECT_EQ(judgements(data.examples()), (std::vector<int>{1, 0, 1})) << "one is too long alone";
  EXPECT_EQ(documents_together(config_), 1);
  config_.train.objective = Objective::kDpo;
  EXPECT_EQ(load({.path = (dir_ / "train.jsonl").string()}).examples().size(), 2);
}

TEST_F(JudgedData, SplitsCountJudgements) {
  const auto [train, val] = split_dataset(load(write(records(20))), 0.25, 3);
  EXPECT_EQ(train.stats().num_desirable + train.stats().num_undesirable, 15);
  EXPECT_EQ(val.stats().num_desirable + val.stats().num_undesirable, 5);
  int64_t desirable = 0;
  for (const int judgement : judgements(val.examples())) desirable += judgement;
  EXPECT_EQ(val.stats().num_desirable, desirable);
}

TEST_F(JudgedData, BadLabelsAreLeftOutAndCounted) {
  config_.data.bad_records = config::BadRecords::kSkip;
  const Dataset data = load(write(R"({"prompt": "p", "completion": "a", "label": true}
{"prompt": "p", "completion": "a"}
{"prompt": "p", "completion": "a", "label": "maybe"}
{"prompt": "p", "completion": "b", "label": false}
)"));
  EXPECT_EQ(judgements(data.examples()), (std::vector<int>{1, 0}));
  EXPECT_EQ(data.stats().num_bad, 2);
  config_.data.bad_records = config::BadRecords::kError;
  test::expect_error<DataError>([&] { load({.path = (dir_ / "train.jsonl").string()}); },
                                {"train.jsonl:2", "has no \"label\""});
}

TEST_F(JudgedData, LabelsOfTablesAreRead) {
  const Dataset data = load(write("prompt,completion,label\np,a,True\np,b,0\n", "train.csv"));
  EXPECT_EQ(judgements(data.examples()), (std::vector<int>{1, 0}));
  config_.data.fields = {{"label", "good"}};
  EXPECT_EQ(judgements(load(write(R"({"prompt": "p", "completion": "a", "good": true}
{"prompt": "p", "completion": "b", "good": false}
)"))
                           .examples()),
            (std::vector<int>{1, 0}));
}

TEST_F(JudgedData, AreWeightedAndMixed) {
  config::DataSource first = write(records(4)), second = write(records(2), "second.jsonl");
  second.weight = 2;
  const Dataset data = load_dataset(config_, {first, second}, false, model_, 1);
  EXPECT_EQ(judgements(data.examples()), (std::vector<int>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(data.parts()[1].weight, 2);
  EXPECT_EQ(data.stats().num_desirable, 3);
}

TEST_F(JudgedData, OneJudgementAloneIsWarnedOf) {
  EXPECT_EQ(warnings(write(records(6))).find("desirable"), std::string::npos);
  const std::string good = R"({"prompt": "p", "completion": "a", "label": true})";
  EXPECT_NE(warnings(write(good + "\n" + good + "\n")).find("all 2 examples are desirable"),
            std::string::npos);
  EXPECT_NE(warnings(write(R"({"prompt": "p", "completion": "a", "label": false})"))
                .find("all 1 examples are undesirable"),
            std::string::npos);
}

/// A mixture may have a file of each.
TEST_F(JudgedData, DataSetsOfOneJudgementAreNotWarnedOfOneByOne) {
  const std::string good = R"({"prompt": "p", "completion": "a", "label": true})";
  const config::DataSource source = write(good + "\n");
  config_.data.train = {source, source};
  EXPECT_EQ(join(try_dataset(config_, source, /*is_validation=*/false, model_).warnings, "\n")
                .find("desirable"),
            std::string::npos);
}

TEST_F(JudgedData, AreStreamed) {
  config_.data.train = {write(records(30))};
  config_.data.streaming = true;
  config_.data.shuffle_buffer = 8;
  for (const bool packing : {false, true}) {
    config_.data.packing = packing;
    BatchStream stream(config_, model_, 1, nullptr);
    for (int step = 0; step < 9; ++step) {
      const StepBatch batch = stream.next();
      const Batch made = make_batch(batch.examples, batch.bins, 0, 2);
      ASSERT_EQ(made.is_desirable.size(), made.document_keys.size());
      EXPECT_TRUE(packing || made.is_desirable.size() == 2U);
      for (size_t i = 0; i < made.is_desirable.size(); ++i) {
        // The number behind the p is even where the answer is desirable; its last digit says so.
        const auto at = static_cast<size_t>(made.cu_seqlens[i]);
        size_t digit = at + 1;
        while (made.tokens[digit + 1] != 'c') ++digit;
        EXPECT_EQ(made.is_desirable[i] != 0, (made.tokens[digit] - '0') % 2 == 0);
      }
    }
  }
}

TEST_F(JudgedData, PreviewsShowTheJudgement) {
  const config::DataSource source = write(records(2));
  config_.data.train = {source};
  const Preview preview = preview_dataset(config_, source, /*is_validation=*/false, model_, 2);
  const std::string text = preview_text(preview, model_, /*colour=*/false);
  EXPECT_NE(text.find("line 1: 4 tokens, 2 trained on (50.0%); desirable"), std::string::npos)
      << text;
  EXPECT_NE(text.find("; undesirable"), std::string::npos);
  EXPECT_NE(preview_html({preview}, model_, "t").find("; undesirable"), std::string::npos);
  const Json sequences = preview_json({preview}, model_)["data_sets"][0]["sequences"];
  EXPECT_EQ(sequences[0]["is_desirable"], true);
  EXPECT_EQ(sequences[1]["is_desirable"], false);
  config_.train.objective = Objective::kSft;
  const Preview of_sft = preview_dataset(config_, source, false, model_, 1);
  EXPECT_TRUE(
      preview_json({of_sft}, model_)["data_sets"][0]["sequences"][0]["is_desirable"].is_null());
}

TEST_F(JudgedData, PreviewsNameTheAnswersOfAPair) {
  const config::DataSource source =
      write(R"({"prompt": "p", "chosen": "a", "rejected": "longer than that is"})");
  config_.data.train = {source};
  const Preview preview = preview_dataset(config_, source, false, model_, 1);
  ASSERT_EQ(preview.sequences.size(), 2U);
  EXPECT_EQ(preview.sequences[0].place, "line 1, chosen");
  EXPECT_EQ(preview.sequences[0].left_out, "") << "each answer is by itself";
  EXPECT_NE(preview.sequences[1].left_out, "");
}

TEST_F(JudgedData, TheFirstLookFindsBadLabels) {
  const config::DataSource source = write(R"({"prompt": "p", "completion": "a", "label": true}
{"prompt": "p", "completion": "a", "label": "maybe"}
)");
  test::expect_error<DataError>([&] { look_at_source(config_, source, /*is_validation=*/false); },
                                {"\"label\" must be true or false", "train.jsonl:2"});
}

}  // namespace
}  // namespace sftrun::data
