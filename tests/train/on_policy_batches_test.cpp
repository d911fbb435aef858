#include "sftrun/train/on_policy_batches.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "by_name.h"
#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun::train {
namespace {

constexpr int64_t kExamples = 8, kPrompt = 3;

/// Example i has 3 + i tokens 10 + i of prompt, a turn of the model in it, and 4 labelled tokens 50 + i.
data::Example example_of(int64_t i) {
  data::Example example{
      .record = i, .line = i + 1, .record_text = "{\"n\":" + std::to_string(i) + "}"};
  example.tokens.assign(static_cast<size_t>(kPrompt + i), static_cast<int32_t>(10 + i));
  const auto begin = static_cast<int64_t>(example.tokens.size());
  example.tokens.insert(example.tokens.end(), 4, static_cast<int32_t>(50 + i));
  example.tokens.push_back(2);  // not trained on
  example.labels.assign(example.tokens.size(), data::kIgnoreIndex);
  example.labels[0] = example.tokens[1];  // an earlier answer
  for (int64_t at = begin; at < begin + 4; ++at)
    example.labels[static_cast<size_t>(at - 1)] = example.tokens[static_cast<size_t>(at)];
  example.label_tokens = 5;
  return example;
}

data::Dataset dataset_of(const std::vector<data::Example>& examples) {
  data::DatasetPart part{
      .name = "d.jsonl", .files = {{.path = "d.jsonl"}}, .end = std::ssize(examples)};
  return {data::ExampleStore::in_memory(examples), {part}, {}, "f"};
}

data::Dataset dataset() {
  std::vector<data::Example> examples;
  for (int64_t i = 0; i < kExamples; ++i) examples.push_back(example_of(i));
  return dataset_of(examples);
}

config::RunConfig config_of(double share) {
  config::RunConfig config;
  config.model.max_seq_len = 32;
  config.train.objective = config::Objective::kDistill;
  config.train.rollouts.share = share;
  config.train.rollouts.max_new_tokens = 9;
  config.train.epochs = 20;
  config.train.global_batch_size.value = 4;
  config.data.packing = false;
  return config;
}

/// What a run asks, and answers of one, two, … tokens 90.
struct Student {
  std::map<int64_t, std::vector<AskedExample>> asked;
  int stop_exit_code = 0;

  OnPolicyBatches::Write writes() {
    return [this](int64_t step, const std::vector<AskedExample>& of_step) {
      asked[step] = of_step;
      Rollout rollout{.stop_exit_code = stop_exit_code, .answers = {}};
      for (size_t i = 0; i < of_step.size(); ++i) {
        RolloutAnswer answer{.entropy = static_cast<double>(i + 1)};
        answer.tokens.assign(i + 1, 90);
        answer.is_cut_short = i == 0;
        rollout.answers.push_back(std::move(answer));
      }
      return rollout;
    };
  }
};

OnPolicyBatches batches_of(const config::RunConfig& config, const data::Dataset& data,
                           Student& student) {
  return {config, std::make_unique<PlannedBatches>(config, data), &data, student.writes()};
}

TEST(OnPolicyBatches, TheStudentAnswersAllExamplesWithTheShareOne) {
  const data::Dataset data = dataset();
  Student student;
  OnPolicyBatches batches = batches_of(config_of(1), data, student);
  PlannedBatches plain(config_of(1), data);
  ASSERT_EQ(batches.prepare(0), 0);
  const data::StepBatch batch = batches.at(0), other = plain.at(0);
  ASSERT_EQ(student.asked[0].size(), 4U);
  ASSERT_EQ(batch.bins.size(), 4U);
  EXPECT_EQ(batch.label_tokens, 1 + 2 + 3 + 4) << "of the answers alone";
  int64_t tokens = 0;
  for (size_t place = 0; place < 4; ++place) {
    const int64_t origin = other.bins[place].front(), index = batch.bins[place].front();
    const data::ExampleView example = batch.examples[index];
    const int64_t prompt = kPrompt + origin, answer = static_cast<int64_t>(place) + 1;
    ASSERT_EQ(example.size(), prompt + answer);
    tokens += example.size();
    EXPECT_EQ(std::ssize(student.asked[0][place].prompt.ids), prompt);
    EXPECT_EQ(student.asked[0][place].place, data.place_of(origin));
    EXPECT_EQ(student.asked[0][place].record, "{\"n\":" + std::to_string(origin) + "}");
    for (int64_t i = 0; i < example.size(); ++i) {
      EXPECT_EQ(example.token(i), i < prompt ? 10 + origin : 90);
      EXPECT_EQ(example.has_label(i), i >= prompt);
    }
    EXPECT_EQ(example.stored->number, origin + 1);
    EXPECT_EQ(batches.file_of(batch, index).path, "d.jsonl");
  }
  EXPECT_EQ(batch.tokens, tokens);
  const auto metrics = by_name(batch.metrics);
  EXPECT_DOUBLE_EQ(metrics.at("completions/mean_length"), 2.5);
  EXPECT_DOUBLE_EQ(metrics.at("completions/clipped_ratio"), 0.25);
  EXPECT_DOUBLE_EQ(metrics.at("entropy"), 1);
  EXPECT_TRUE(metrics.contains("rollouts/seconds"));
}

TEST(OnPolicyBatches, TheOthersStayAsTheyAre) {
  const data::Dataset data = dataset();
  Student student, again;
  OnPolicyBatches batches = batches_of(config_of(0.5), data, student);
  OnPolicyBatches resumed = batches_of(config_of(0.5), data, again);
  PlannedBatches plain(config_of(0.5), data);
  int64_t num_asked = 0, num_all = 0;
  std::set<size_t> sizes;
  for (int64_t step = 0; step < plain.total_steps(); ++step) {
    ASSERT_EQ(batches.prepare(step), 0);
    const data::StepBatch batch = batches.at(step), other = plain.at(step);
    const std::vector<AskedExample>& asked = student.asked[step];
    sizes.insert(asked.size());
    ASSERT_EQ(batch.bins.size(), other.bins.size());
    size_t found = 0;
    int64_t labels = 0;
    for (size_t place = 0; place < batch.bins.size(); ++place) {
      const data::ExampleView example = batch.examples[batch.bins[place].front()];
      const data::ExampleView origin = other.examples[other.bins[place].front()];
      EXPECT_EQ(example.stored->record, origin.stored->record) << "the order is that of the data";
      labels += example.stored->label_tokens;
      const bool is_own = example.token(example.size() - 1) == 90;
      found += is_own ? 1 : 0;
      if (!is_own) {
        EXPECT_EQ(example.stored->label_tokens, 5);
      }
    }
    EXPECT_EQ(found, asked.size());
    EXPECT_EQ(batch.label_tokens, labels);
    EXPECT_EQ(batch.metrics.empty(), asked.empty());
    num_asked += std::ssize(asked);
    num_all += std::ssize(batch.bins);
  }
  EXPECT_NEAR(static_cast<double>(num_asked) / static_cast<double>(num_all), 0.5, 0.1);
  EXPECT_GT(sizes.size(), 1U) << "drawn example by example";
  ASSERT_EQ(resumed.prepare(7), 0) << "what is asked depends on the step alone";
  ASSERT_EQ(again.asked[7].size(), student.asked[7].size());
  for (size_t i = 0; i < again.asked[7].size(); ++i)
    EXPECT_EQ(again.asked[7][i].place, student.asked[7][i].place);
}

TEST(OnPolicyBatches, TextsWithoutAPromptKeepTheirLabels) {
  data::Example text{.record = 0, .line = 1};
  text.tokens = {5, 6, 7};
  text.labels = {6, 7, data::kIgnoreIndex};
  text.label_tokens = 2;
  const data::Dataset mixed = dataset_of({text, example_of(1)});
  config::RunConfig config = config_of(1);
  config.train.global_batch_size.value = 2;
  Student student;
  OnPolicyBatches batches = batches_of(config, mixed, student);
  ASSERT_EQ(batches.prepare(0), 0);
  ASSERT_EQ(student.asked[0].size(), 1U);
  EXPECT_EQ(batches.at(0).label_tokens, 2 + 1);
  const data::Dataset texts = dataset_of({text});
  test::expect_error<DataError>([&] { batches_of(config, texts, student); },
                                {"no training example has a prompt", "remove train.rollouts"});
}

TEST(OnPolicyBatches, TheLongestMicroBatchHasTheLongestPromptsWithTheLongestAnswers) {
  const data::Dataset data = dataset();
  Student student;
  const OnPolicyBatches batches = batches_of(config_of(0.5), data, student);
  const int64_t longest = kPrompt + kExamples - 1 + 9;
  EXPECT_EQ(batches.longest_answered(), longest);
  EXPECT_EQ(batches.micro_batch_tokens(2, /*of_longest=*/true), 2 * longest);
  const data::StepBatch batch = batches.longest(2);
  EXPECT_EQ(batch.tokens, 2 * longest - 1);
  EXPECT_EQ(batch.label_tokens, 2 * 9);
  EXPECT_EQ(batches.file_of(batch, batch.bins[1].front()).path, "d.jsonl");
  EXPECT_EQ(batches.largest(2, {}).size(), 2U);
  config::RunConfig small = config_of(0.5);
  small.model.max_seq_len = 16;  // example 7 has 15 tokens, 10 of them prompt
  const OnPolicyBatches limited = batches_of(small, data, student);
  EXPECT_EQ(limited.longest_answered(), 16);
  EXPECT_EQ(limited.longest(1).label_tokens, 6);
}

TEST(OnPolicyBatches, AStopLeavesNoBatch) {
  const data::Dataset data = dataset();
  Student student{.asked = {}, .stop_exit_code = 143};
  OnPolicyBatches batches = batches_of(config_of(1), data, student);
  EXPECT_EQ(batches.prepare(0), 143);
}

/// Batches whose place in the data moves when they are read, as those of streams.
class MovingBatches final : public Batches {
 public:
  explicit MovingBatches(data::StepBatch batch) : batch_(std::move(batch)) {}
  int64_t total_steps() const override { return 9; }
  data::StepBatch at(int64_t /*step*/) override {
    ++read_;
    return batch_;
  }
  data::StepBatch longest(int64_t /*num_bins*/) const override { return batch_; }
  double epochs_after(int64_t /*step*/) const override { return 0; }
  bool ends_epoch(int64_t /*step*/) const override { return false; }
  int64_t num_bad_records() const override { return 0; }
  nlohmann::ordered_json position() const override { return read_; }
  const data::SourceFile& file_of(const data::StepBatch& batch, int64_t index) const override {
    return batch.files.at(static_cast<size_t>(batch.examples.stored(index).file));
  }

 private:
  data::StepBatch batch_;
  int64_t read_ = 0;
};

TEST(OnPolicyBatches, AStreamIsResumedBeforeTheStepThatHadNoBatch) {
  data::StepBatch step;
  step.examples = data::ExampleStore::in_memory({example_of(0), example_of(1)});
  step.bins = {{0}, {1}};
  step.files = {{.path = "s.jsonl"}};
  Student student;
  OnPolicyBatches batches(config_of(1), std::make_unique<MovingBatches>(step), nullptr,
                          student.writes());
  EXPECT_EQ(batches.longest_answered(), 32) << "model.max_seq_len";
  ASSERT_EQ(batches.prepare(0), 0);
  EXPECT_EQ(batches.position(), 0);
  const data::StepBatch batch = batches.at(0);
  EXPECT_EQ(batches.position(), 1);
  EXPECT_EQ(batches.file_of(batch, batch.bins[1].front()).path, "s.jsonl");
  student.stop_exit_code = 130;
  EXPECT_EQ(batches.prepare(1), 130);
  EXPECT_EQ(batches.position(), 1);
}

}  // namespace
}  // namespace sftrun::train
