#include "sftrun/data/batch_stream.h"

#include <gtest/gtest.h>

#include <map>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "toy_model.h"

namespace sftrun::data {
namespace {

class BatchStreams : public ::testing::Test {
 protected:
  BatchStreams() {
    log::configure({.console = log::Level::kOff});
    config_.model.max_seq_len = 64;
    config_.train.global_batch_size.value = 4;
    config_.data.streaming = true;
    config_.data.shuffle_buffer = 20;
  }
  /// Text records "<tag><i>", each of another length.
  void add(const std::string& tag, int count, double weight = 1) {
    std::string content;
    for (int i = 0; i < count; ++i)
      content += Json({{"text", tag + std::to_string(i) + std::string(i % 17, '.')}}).dump() + "\n";
    write_file_atomically(dir_ / (tag + ".jsonl"), content);
    config_.data.train.push_back({.path = (dir_ / (tag + ".jsonl")).string(), .weight = weight});
  }
  /// The texts of a batch, bin by bin.
  std::vector<std::vector<std::string>> texts(const StepBatch& batch) {
    std::vector<std::vector<std::string>> bins;
    for (const Bin& bin : batch.bins) {
      bins.emplace_back();
      for (const int64_t index : bin) {
        const ExampleView example = batch.examples[index];
        std::vector<tokenizer::TokenId> ids;
        for (int64_t i = 0; i < example.size(); ++i) ids.push_back(example.token(i));
        std::string text = model_.tokenizer->decode(ids, /*skip_special_tokens=*/true);
        bins.back().push_back(text.substr(0, text.find('.')));
      }
    }
    return bins;
  }
  /// How often each text comes in the next `steps` batches.
  std::map<std::string, int> counts(BatchStream& stream, int steps) {
    std::map<std::string, int> found;
    for (int step = 0; step < steps; ++step)
      for (const auto& bin : texts(stream.next()))
        for (const std::string& text : bin) ++found[text];
    return found;
  }

  sftrun::test::TemporaryDirectory dir_;
  config::RunConfig config_;
  TextModel model_ = test::toy_model();
};

TEST_F(BatchStreams, EveryRecordOnceAPass) {
  add("a", 100);
  config_.data.packing = false;
  BatchStream stream(config_, model_, 2, nullptr);
  const auto first = counts(stream, 25);
  EXPECT_EQ(first.size(), 100U);
  for (const auto& [text, count] : first) EXPECT_EQ(count, 1) << text;
  EXPECT_NEAR(stream.epochs(), 1, 1e-9);
  EXPECT_EQ(counts(stream, 25).size(), 100U) << "and again";
  EXPECT_NEAR(stream.epochs(), 2, 1e-9);
}

TEST_F(BatchStreams, AWindowThatHoldsRecordsTwiceIsWarnedOf) {
  const auto warnings = [&](int num_records) {
    config_.data.train.clear();
    add("a", num_records);
    const std::filesystem::path file = dir_ / "log";
    log::configure({.console = log::Level::kOff, .file = file});
    BatchStream stream(config_, model_, 1, nullptr);
    for (int step = 0; step < 40; ++step) stream.next();
    log::flush();
    const std::string lines = read_text_file(file);
    log::configure({.console = log::Level::kOff});
    std::filesystem::remove(file);
    const std::string warning = "a.jsonl has " + std::to_string(num_records) + " records";
    const size_t first = lines.find(warning);
    const bool is_once =
        first != std::string::npos && lines.find(warning, first + 1) == std::string::npos;
    return is_once ? lines.substr(first) : "";
  };
  EXPECT_NE(warnings(7).find("set data.shuffle_buffer to at most 7"), std::string::npos);
  EXPECT_EQ(warnings(20), "");
  EXPECT_EQ(warnings(33), "");
}

/// Of the window at hand, whatever of it was used.
TEST_F(BatchStreams, KnowsTheLargestBinsOfAWindow) {
  add("a", 17);
  config_.data.shuffle_buffer = 17;
  config_.data.packing = false;
  BatchStream stream(config_, model_, 1, nullptr);
  EXPECT_TRUE(stream.largest(2, {}).empty());
  const std::vector<BinCost> measures = {
      tokens_of,
      [](const ExampleStore& examples, const Bin& bin) { return -tokens_of(examples, bin); }};
  const std::vector<StepBatch> largest = stream.largest(2, measures);
  ASSERT_EQ(largest.size(), 2U);
  EXPECT_EQ(texts(largest[0]), (std::vector<std::vector<std::string>>{{"a16"}, {"a15"}}));
  EXPECT_EQ(texts(largest[1]), (std::vector<std::vector<std::string>>{{"a0"}, {"a1"}}));
  EXPECT_EQ(largest[0].tokens,
            largest[0].examples.stored(0).length + largest[0].examples.stored(1).length);
  EXPECT_EQ(counts(stream, 4).size(), 16U) << "nothing of it is used up";
}

TEST_F(BatchStreams, ResumesWithTheVeryNextBatch) {
  for (const bool packing : {true, false}) {
    config_.data.packing = packing;
    config_.data.train.clear();
    add("a", 70);
    add("b", 31, 2);
    BatchStream whole(config_, model_, 1, nullptr);
    std::vector<std::vector<std::vector<std::string>>> batches;
    std::vector<nlohmann::ordered_json> positions{whole.position()};
    std::vector<double> epochs{whole.epochs()};
    for (int step = 0; step < 40; ++step) {
      batches.push_back(texts(whole.next()));
      positions.push_back(nlohmann::ordered_json::parse(whole.position().dump()));
      epochs.push_back(whole.epochs());
    }
    for (const size_t from : {0U, 1U, 2U, 7U, 19U, 39U}) {
      BatchStream resumed(config_, model_, 2, positions[from]);
      EXPECT_DOUBLE_EQ(resumed.epochs(), epochs[from]);
      for (size_t step = from; step < 40; ++step)
        ASSERT_EQ(texts(resumed.next()), batches[step]) << from << " " << step;
    }
  }
}

TEST_F(BatchStreams, ShufflesWithinTheBuffer) {
  add("a", 200);
  config_.data.packing = false;
  BatchStream stream(config_, model_, 1, nullptr);
  int out_of_order = 0, last = -1;
  for (int step = 0; step < 50; ++step) {
    for (const auto& bin : texts(stream.next())) {
      const int record = std::stoi(bin[0].substr(1));
      EXPECT_EQ(record / 20, step * 4 / 20) << "within its window";
      out_of_order += record < last ? 1 : 0;
      last = record;
    }
  }
  EXPECT_GT(out_of_order, 50);
  config_.data.shuffle = false;
  BatchStream ordered(config_, model_, 1, nullptr);
  EXPECT_EQ(texts(ordered.next()),
            (std::vector<std::vector<std::string>>{{"a0"}, {"a1"}, {"a2"}, {"a3"}}));
}

TEST_F(BatchStreams, WeightsSetTheSharesOfAWindow) {
  add("a", 100);
  add("b", 50, 2);
  config_.data.packing = false;
  config_.data.shuffle_buffer = 40;
  BatchStream stream(config_, model_, 1, nullptr);
  int a = 0, b = 0;
  for (const auto& [text, count] : counts(stream, 40)) (text[0] == 'a' ? a : b) += count;
  EXPECT_EQ(a + b, 160);
  EXPECT_NEAR(a, 80, 3);  // 100 once and 50 twice are as many
}

TEST_F(BatchStreams, FilesAndPlacesOfExamples) {
  add("a", 10);
  add("b", 10);
  BatchStream stream(config_, model_, 1, nullptr);
  const StepBatch batch = stream.next();
  for (size_t bin = 0; bin < batch.bins.size(); ++bin) {
    for (size_t i = 0; i < batch.bins[bin].size(); ++i) {
      const StoredExample& stored = batch.examples.stored(batch.bins[bin][i]);
      const std::string text = texts(batch)[bin][i];
      const SourceFile& file = batch.files[static_cast<size_t>(stored.file)];
      EXPECT_TRUE(file.path.ends_with(std::string(1, text[0]) + ".jsonl")) << file.path << text;
      EXPECT_EQ(stored.number, std::stoul(text.substr(1)) + 1);
    }
  }
}

TEST_F(BatchStreams, RefusesDataThatCannotBeTrainedOn) {
  add("a", 10);
  model_ = test::toy_model();
  config_.model.max_seq_len = 2;
  config_.data.too_long = config::TooLong::kDrop;
  EXPECT_THROW(BatchStream(config_, model_, 1, nullptr), DataError);
  config_.model.max_seq_len = 64;
  EXPECT_THROW(BatchStream(config_, model_, 1, {{"window", 1}}), DataError);
  EXPECT_THROW(
      BatchStream(config_, model_, 1,
                  {{"window", 1}, {"sources", {{0, 1}, {0, 1}}}, {"bins", 0}, {"epochs", 0.0}}),
      DataError);
}

TEST_F(BatchStreams, BadRecordsAreLeftOutAndCounted) {
  add("a", 30);
  const std::filesystem::path file = dir_ / "a.jsonl";
  const std::string good = read_text_file(file);
  write_file_atomically(file, "oops\n" + good + "{\"text\": 3}\n");
  EXPECT_THROW(BatchStream(config_, model_, 1, nullptr), DataError);
  config_.data.bad_records = config::BadRecords::kSkip;
  BatchStream whole(config_, model_, 1, nullptr);
  std::vector<std::vector<std::vector<std::string>>> batches;
  std::vector<nlohmann::ordered_json> positions;
  std::vector<int64_t> bad;
  for (int step = 0; step < 12; ++step) {
    positions.push_back(whole.position());
    bad.push_back(whole.num_bad_records());
    batches.push_back(texts(whole.next()));
  }
  EXPECT_EQ(bad.front(), 1);
  EXPECT_GT(bad.back(), 1);
  for (const size_t step : {1U, 5U, 9U}) {
    BatchStream resumed(config_, model_, 1, positions[step]);
    EXPECT_EQ(resumed.num_bad_records(), bad[step]) << step;
    EXPECT_EQ(texts(resumed.next()), batches[step]) << step;
    EXPECT_EQ(resumed.position(),
              step + 1 < positions.size() ? positions[step + 1] : resumed.position());
  }
}

TEST_F(BatchStreams, AWindowOfBadRecordsIsPassed) {
  std::string content;
  for (int i = 0; i < 50; ++i) content += "oops\n";
  for (int i = 0; i < 5; ++i) content += "{\"text\": \"a\"}\n";
  write_file_atomically(dir_ / "b.jsonl", content);
  config_.data.train = {
      {.path = (dir_ / "b.jsonl").string(), .format = config::RecordFormat::kText}};
  config_.data.bad_records = config::BadRecords::kSkip;
  BatchStream stream(config_, model_, 1, nullptr);
  EXPECT_FALSE(texts(stream.next()).empty());
  const auto position = stream.position();
  const int64_t bad = stream.num_bad_records();
  EXPECT_GE(bad, 50);
  EXPECT_EQ(BatchStream(config_, model_, 1, position).num_bad_records(), bad);
}

}  // namespace
}  // namespace sftrun::data
