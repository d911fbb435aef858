#include "class_labels.h"

#include <gtest/gtest.h>

#include "sftrun/data/classes.h"
#include "sftrun/data/dataset.h"
#include "support/expect_error.h"
#include "toy_model.h"

/// Records with classes, and margins of pairs. tests/parity/heads_parity.py compares tokens with transformers'.
namespace sftrun::data {
namespace {

using config::Objective;
using config::ProblemType;
using Numbers = std::vector<float>;
using Names = std::vector<std::string>;

Numbers numbers_of(const char* record, const Names& classes, ProblemType problem) {
  return class_numbers(Json::parse(record), classes, problem, "f:1");
}

TEST(Classes, AreNamesOrNumbers) {
  const Names classes = {"bad", "good", "7"};
  const auto single = [&](const char* value) {
    const std::string record = std::string("{\"label\": ") + value + "}";
    return numbers_of(record.c_str(), classes, ProblemType::kSingleLabel);
  };
  for (const char* one : {R"("good")", "1", "1.0", R"("1")", "true", R"(["good"])", "[1]"})
    EXPECT_EQ(single(one), Numbers{1}) << one;
  EXPECT_EQ(single(R"("7")"), Numbers{2}) << "a name comes before a number";
  for (const char* none : {R"("")", R"("  ")", R"("a\u0000b")"})
    test::expect_error<DataError>([&] { single(none); }, {"no name of a class", "f:1"});
  for (const char* none : {R"("best")", "3", "-1", "0.5", "{}"})
    test::expect_error<DataError>([&] { single(none); },
                                  {"none of the 3 classes", "bad, good, 7", "f:1"});
  test::expect_error<DataError>([&] { single(R"(["bad", "good"])"); },
                                {"has 2 classes", "multi_label_classification"});
  test::expect_error<DataError>([&] { single("[]"); }, {"has 0 classes"});
  test::expect_error<DataError>(
      [&] { numbers_of(R"({"text": "a"})", classes, ProblemType::kSingleLabel); },
      {"the record has no \"label\"", "f:1"});
}

TEST(Classes, MayBeSeveral) {
  const Names classes = {"a", "b", "c"};
  const auto several = [&](const char* value) {
    const std::string record = std::string("{\"labels\": ") + value + "}";
    return numbers_of(record.c_str(), classes, ProblemType::kMultiLabel);
  };
  EXPECT_EQ(several(R"(["c", "a"])"), (Numbers{0, 2}));
  EXPECT_EQ(several("[]"), Numbers{});
  EXPECT_EQ(several("[2]"), Numbers{2});
  EXPECT_EQ(several("[true, false, true]"), (Numbers{0, 2}));
  EXPECT_EQ(several("[0.0, 1.0, 0.0]"), Numbers{1});
  EXPECT_EQ(several(R"("[\"b\", \"c\"]")"), (Numbers{1, 2})) << "a cell of a table";
  EXPECT_EQ(several(R"("b")"), Numbers{1});
  test::expect_error<DataError>([&] { several(R"(["a", "a"])"); }, {"has a class twice"});
  test::expect_error<DataError>([&] { several("[0, 1, 0]"); }, {"has a class twice"});
  for (const char* flags : {"[true, false]", "[0.0, 1.0]", "[false, false, false, true]"})
    test::expect_error<DataError>([&] { several(flags); }, {"flags, and there are 3 classes"});
  EXPECT_EQ(several("[2.0]"), Numbers{2}) << "a number of a column with gaps";
}

TEST(Margins, AreNumbers) {
  EXPECT_EQ(margin_of(Json::parse(R"({"chosen": "a"})"), "f:1"), 0);
  EXPECT_EQ(margin_of(Json::parse(R"({"margin": 1.5})"), "f:1"), 1.5F);
  EXPECT_EQ(margin_of(Json::parse(R"({"margin": "-2"})"), "f:1"), -2);
  EXPECT_EQ(margin_of(Json::parse(R"({"margin": null})"), "f:1"), 0);
  for (const char* other : {R"({"margin": "much"})", R"({"margin": [1]})"})
    test::expect_error<DataError>([&] { margin_of(Json::parse(other), "f:1"); },
                                  {"\"margin\" must be a number", "f:1"});
}

TEST(ClassedRecords, HaveATextAndAClass) {
  const auto format = [](const char* record) {
    return detect_format(Json::parse(record), "f:1", Objective::kClassify);
  };
  EXPECT_EQ(format(R"({"text": "a", "label": 1})").format, RecordFormat::kText);
  EXPECT_EQ(format(R"({"prompt": "a", "label": 1})").format, RecordFormat::kText);
  EXPECT_EQ(format(R"({"prompt": "a", "label": 1})").reason, "it has \"prompt\" and a label");
  EXPECT_EQ(format(R"({"prompt": [{"role": "user", "content": "a"}], "labels": []})").format,
            RecordFormat::kMessages);
  EXPECT_EQ(format(R"({"prompt": "a", "completion": "b", "label": "x"})").format,
            RecordFormat::kPromptCompletion);
  test::expect_error<DataError>([&] { format(R"({"text": "a"})"); },
                                {"no \"label\" or \"labels\"", "data.fields: {label: COLUMN}"});
  test::expect_error<DataError>([&] { format(R"({"review": "a", "label": 1})"); },
                                {"no text that it is the class of", "data.fields: {text: COLUMN}"});
}

SequenceOptions options_of(config::HeadKind head, config::ExampleForm form) {
  return {.form = form,
          .head = head,
          .classes = {"bad", "good"},
          .problem_type = ProblemType::kSingleLabel,
          .loss_on = config::LossOnChoice::kAll};
}

/// As `tokenizer(text)` and `apply_chat_template(messages)`; nothing is added behind.
TEST(ClassedRecords, AreWholeTexts) {
  const TextModel model = test::toy_model();
  const auto build = [&](RecordFormat format, const char* record) {
    return SequenceBuilder(format, model,
                           options_of(config::HeadKind::kClasses, config::ExampleForm::kClassed))
        .build(Json::parse(record), "f:1")
        .at(0);
  };
  const Sequence text = build(RecordFormat::kText, R"({"text": "ab", "label": "good"})");
  EXPECT_EQ(text.ids, model.tokenizer->encode("ab", /*add_special_tokens=*/true));
  EXPECT_EQ(text.targets, Numbers{1});
  EXPECT_EQ(text.mask, std::vector<uint8_t>(text.ids.size(), 1));
  EXPECT_EQ(build(RecordFormat::kText, R"({"prompt": "ab", "label": 0})").ids, text.ids);
  const Sequence chat = build(RecordFormat::kMessages,
                              R"({"messages": [{"role": "user", "content": "ab"}], "label": 0})");
  EXPECT_EQ(chat.text, "<|im_start|>user\nab<|im_end|>\n");
  EXPECT_EQ(chat.targets, Numbers{0});
}

TEST(ClassedRecords, PairsHaveMargins) {
  const std::vector<Sequence> pair =
      SequenceBuilder(RecordFormat::kPreference, test::toy_model(),
                      options_of(config::HeadKind::kReward, config::ExampleForm::kPair))
          .build(Json::parse(R"({"prompt": "a", "chosen": "b", "rejected": "", "margin": 0.5})"),
                 "f:1");
  ASSERT_EQ(pair.size(), 2U);
  for (const Sequence& sequence : pair) {
    EXPECT_EQ(sequence.targets, Numbers{0.5F});
    EXPECT_EQ(sequence.ids.back(), test::kEos);
    EXPECT_EQ(sequence.mask, std::vector<uint8_t>(sequence.ids.size(), 1));
  }
}

class FoundClassesTest : public testing::Test {
 protected:
  FoundClasses find(const std::string& lines, const Names& known = {}) {
    const auto path = dir_ / "a.jsonl";
    write_file_atomically(path, lines);
    config_.train.objective = Objective::kClassify;
    config_.data.train = {{.path = path.string()}};
    config_.data.cache_dir = "none";
    return find_classes(config_, known);
  }

  test::TemporaryDirectory dir_;
  config::RunConfig config_;
};

TEST_F(FoundClassesTest, AreNamesInOrderOrCounted) {
  const FoundClasses names = find(
      "{\"text\": \"x\", \"label\": \"pos\"}\n{\"text\": \"x\", \"label\": \"neg\"}\n"
      "{\"text\": \"x\", \"label\": \"pos\"}\n");
  EXPECT_EQ(names.names, (Names{"neg", "pos"}));
  EXPECT_EQ(names.problem, ProblemType::kSingleLabel);
  const std::string numbers = "{\"text\": \"x\", \"label\": 0}\n{\"text\": \"x\", \"label\": 2}\n";
  EXPECT_EQ(find(numbers).names, (Names{"LABEL_0", "LABEL_1", "LABEL_2"}));
  EXPECT_EQ(find(numbers, {"a", "b", "c", "d"}).names, (Names{"a", "b", "c", "d"}));
  EXPECT_EQ(find("{\"text\": \"x\", \"label\": true}\n{\"text\": \"x\", \"label\": false}\n").names,
            (Names{"false", "true"}));
  const FoundClasses several =
      find("{\"text\": \"x\", \"labels\": [\"b\", \"a\"]}\n{\"text\": \"x\", \"labels\": []}\n");
  EXPECT_EQ(several.names, (Names{"a", "b"}));
  EXPECT_EQ(several.problem, ProblemType::kMultiLabel);
  EXPECT_EQ(find("{\"text\": \"x\", \"labels\": [0.0, 1.0, 1.0]}\n").names.size(), 3U);
}

TEST_F(FoundClassesTest, ANumberFarAboveTheOthersIsRemarked) {
  std::string records;
  for (int i = 0; i < 6; ++i)
    records += "{\"text\": \"x\", \"label\": " + std::to_string(i % 3) + "}\n";
  EXPECT_EQ(find(records).remark, "");
  const FoundClasses found = find(records + "{\"text\": \"x\", \"label\": 4000}\n");
  EXPECT_EQ(found.names.size(), 4001U);
  EXPECT_NE(found.remark.find("go up to 4000"), std::string::npos) << found.remark;
  EXPECT_NE(found.remark.find(":7"), std::string::npos) << found.remark;
  EXPECT_NE(found.remark.find("3997 of the 4001 classes"), std::string::npos) << found.remark;
}

TEST_F(FoundClassesTest, OfAModelAreKeptIfTheyAreTheSame) {
  const std::string names = "{\"text\": \"x\", \"label\": \"b\"}\n";
  EXPECT_EQ(find(names, {"c", "b", "a"}).names, (Names{"c", "b", "a"}));
  EXPECT_EQ(find(names + "{\"text\": \"x\", \"label\": \"d\"}\n", {"c", "b"}).names,
            (Names{"b", "d"}));
  config_.data.classes = {"z", "b"};
  EXPECT_EQ(find(names, {"b"}).names, (Names{"z", "b"}));
}

TEST_F(FoundClassesTest, AreOfOneKind) {
  test::expect_error<DataError>(
      [&] { find("{\"text\": \"x\", \"label\": \"b\"}\n{\"text\": \"x\", \"label\": 1}\n"); },
      {"names of classes", "numbers", "a.jsonl:1"});
  test::expect_error<DataError>([&] { find("{\"text\": \"x\", \"label\": \"b\"}\n"); },
                                {"there is one class, b", "data.classes"});
  test::expect_error<DataError>([&] { find("{\"text\": \"x\"}\n"); },
                                {"no \"label\" or \"labels\""});
}

TEST_F(FoundClassesTest, OfTheConfigurationAreDistinct) {
  config_.data.classes = {"a", "b", "a"};
  test::expect_error<ConfigError>([&] { find("{\"text\": \"x\", \"label\": 1}\n"); },
                                  {"has a name twice"});
}

TEST_F(FoundClassesTest, OfTheConfigurationAreVisible) {
  for (const std::string& name : {std::string(), std::string("a\0b", 3), std::string("\n")}) {
    config_.data.classes = {"good", name};
    test::expect_error<ConfigError>([&] { find("{\"text\": \"x\", \"label\": 0}\n"); },
                                    {"data.classes", "visible characters"});
  }
}

/// Through the store and a batch.
TEST_F(FoundClassesTest, ReachTheBatch) {
  const auto path = dir_ / "b.jsonl";
  write_file_atomically(path,
                        "{\"text\": \"abc\", \"labels\": [\"b\", \"a\"]}\n"
                        "{\"text\": \"de\", \"labels\": []}\n");
  config_.train.objective = Objective::kClassify;
  config_.data.train = {{.path = path.string()}};
  config_.data.cache_dir = (dir_ / "cache").string();
  for (int time = 0; time < 2; ++time) {  // the second from the cache
    const Dataset data = load_dataset(config_, config_.data.train, false, test::toy_model(), 2);
    const Batch batch = make_batch(data.examples(), {{0, 1}}, 0, 1);
    EXPECT_EQ(batch.targets, (std::vector<Numbers>{{0, 1}, {}}));
  }
}

}  // namespace
}  // namespace sftrun::data
