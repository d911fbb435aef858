#include "sftrun/data/example_store.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "sftrun/core/error.h"
#include "sftrun/core/rng.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

std::vector<Example> random_examples(int64_t count, uint64_t seed) {
  RandomStream random(seed, 0);
  std::vector<Example> examples;
  for (int64_t i = 0; i < count; ++i) {
    Example example{.record = i / 2, .file = static_cast<int32_t>(i % 3), .line = 7 * i + 1};
    const auto length = 1 + random.next_below(40);
    for (uint64_t t = 0; t < length; ++t)
      example.tokens.push_back(static_cast<int32_t>(random.next_below(INT32_MAX)));
    example.labels.assign(length, kIgnoreIndex);
    for (size_t t = 0; t + 1 < length; ++t) {
      if (random.next_below(2) == 0) continue;
      example.labels[t] = example.tokens[t + 1];
      ++example.label_tokens;
    }
    example.judgement = static_cast<Judgement>(random.next_below(3));
    example.answer_begin = static_cast<int64_t>(random.next_below(length + 1));
    const auto numbers = [&](int64_t size) {
      std::vector<float> values;
      for (int64_t v = 0; v < size; ++v)
        values.push_back(static_cast<float>(random.next_below(1000)) / 7);
      return values;
    };
    for (std::vector<float>& column : example.values.columns)
      if (random.next_below(2) == 0) column = numbers(example.label_tokens);
    example.targets = numbers(static_cast<int64_t>(random.next_below(3)));
    example.score = static_cast<double>(random.next_below(100)) / 3;
    example.score_kind = static_cast<ScoreKind>(random.next_below(3));
    example.group = random.next_below(5);
    example.is_cut_short = random.next_below(2) == 0;
    examples.push_back(std::move(example));
  }
  return examples;
}

void expect_same(const ExampleStore& store, const std::vector<Example>& examples) {
  ASSERT_EQ(store.size(), static_cast<int64_t>(examples.size()));
  for (size_t i = 0; i < examples.size(); ++i) {
    const ExampleView view = store[static_cast<int64_t>(i)];
    ASSERT_EQ(view.size(), static_cast<int64_t>(examples[i].tokens.size()));
    for (int64_t t = 0; t < view.size(); ++t) {
      ASSERT_EQ(view.token(t), examples[i].tokens[static_cast<size_t>(t)]);
      ASSERT_EQ(view.label(t), examples[i].labels[static_cast<size_t>(t)]);
    }
    EXPECT_EQ(view.stored->label_tokens, examples[i].label_tokens);
    EXPECT_EQ(view.stored->record, examples[i].record);
    EXPECT_EQ(view.stored->file, examples[i].file);
    EXPECT_EQ(view.stored->number, examples[i].line);
    EXPECT_EQ(view.stored->judgement, static_cast<uint32_t>(examples[i].judgement));
    EXPECT_EQ(view.stored->answer_begin, examples[i].answer_begin);
    const auto index = static_cast<int64_t>(i);
    EXPECT_EQ(store.values_of(index).columns, examples[i].values.columns);
    EXPECT_EQ(store.targets_of(index), examples[i].targets);
    EXPECT_EQ(view.stored->score, examples[i].score);
    EXPECT_EQ(view.stored->score_kind, static_cast<uint8_t>(examples[i].score_kind));
    EXPECT_EQ(view.stored->group, examples[i].group);
    EXPECT_EQ(view.stored->is_cut_short != 0, examples[i].is_cut_short);
    const std::vector<float>& weights = examples[i].values.of(LabelColumn::kWeight);
    EXPECT_EQ(view.stored->label_weight,
              weights.empty() ? static_cast<double>(examples[i].label_tokens)
                              : std::accumulate(weights.begin(), weights.end(), 0.0));
  }
}

class ExampleStores : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::vector<Example>& examples) {
    ExampleWriter writer(dir_ / "examples");
    for (const Example& example : examples) writer.add(example);
    writer.finish({{"said", "beside"}});
    return dir_ / "examples";
  }
  static void flip_a_bit(const std::filesystem::path& path, uint64_t at, int bit = 1) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ bit));
  }
  test::TemporaryDirectory dir_;
};

TEST_F(ExampleStores, KeepsWhatIsWritten) {
  for (const int64_t count : {0, 1, 2, 500}) {
    const auto examples = random_examples(count, 1);
    const ExampleStore store = ExampleStore::open(write(examples));
    expect_same(store, examples);
    EXPECT_EQ(store.header()["said"], "beside");
    expect_same(ExampleStore::in_memory(examples), examples);
  }
}

TEST_F(ExampleStores, SelectsAndConcatenates) {
  const auto first = random_examples(20, 2), second = random_examples(30, 3);
  const ExampleStore all = ExampleStore::concatenate(
      {ExampleStore::in_memory(first), ExampleStore(), ExampleStore::open(write(second))});
  std::vector<Example> both = first;
  both.insert(both.end(), second.begin(), second.end());
  expect_same(all, both);
  const ExampleStore some = all.select({49, 3, 20, 19});
  expect_same(some, {both[49], both[3], both[20], both[19]});
  expect_same(some.select({2, 0}), {both[20], both[49]});
  const ExampleStore of_some = ExampleStore::concatenate(
      {some, ExampleStore::in_memory(first), all.select({}), some.select({1})});
  std::vector<Example> expected = {both[49], both[3], both[20], both[19]};
  expected.insert(expected.end(), first.begin(), first.end());
  expected.push_back(both[3]);
  expect_same(of_some, expected);
}

TEST_F(ExampleStores, RefusesTruncatedOrChangedFiles) {
  const auto path = write(random_examples(50, 4));
  const std::string whole = read_text_file(path);
  const auto refused = [&] {
    try {
      ExampleStore::open(path);
    } catch (const DataError& error) {
      return error.message().find("damaged") != std::string::npos;
    }
    return false;
  };
  const auto refused_as = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return refused();
  };
  for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 200)
    EXPECT_TRUE(refused_as(whole.substr(0, size))) << size;
  std::string without_labels = whole, zeroed = whole;
  for (size_t at = 8 + 3; at < 1000; at += 4) without_labels[at] &= 0x7f;
  std::fill_n(zeroed.begin() + 8, 1000, '\0');
  EXPECT_TRUE(refused_as(without_labels));
  EXPECT_TRUE(refused_as(zeroed));
  EXPECT_FALSE(refused_as(whole));
  for (size_t at = 0; at < whole.size(); ++at) {  // a bit of every byte, of all regions
    flip_a_bit(path, at, 1 << at % 8);
    EXPECT_TRUE(refused()) << at;
    flip_a_bit(path, at, 1 << at % 8);
  }
  EXPECT_FALSE(refused());
}

/// Of some 40 blocks, a byte in each.
TEST_F(ExampleStores, RefusesADamagedBlockWhereverItIs) {
  const auto path = write(random_examples(30000, 8));
  const auto size = std::filesystem::file_size(path);
  ASSERT_GT(size, 40 * BlockChecksums::kBytes);
  for (uint64_t at = 8; at < size; at += BlockChecksums::kBytes) {
    flip_a_bit(path, at);
    EXPECT_THROW(ExampleStore::open(path, 4), DataError) << at;
    flip_a_bit(path, at);
  }
  expect_same(ExampleStore::open(path, 4), random_examples(30000, 8));
}

/// What is mapped is read from the disk again and again.
TEST_F(ExampleStores, NoticesDamageThatComesAfterOpening) {
  const auto examples = random_examples(10000, 9);
  const auto path = write(examples);
  const ExampleStore store = ExampleStore::open(path);
  int64_t at = 0;
  while (store.stored(at).offset * sizeof(MarkedToken) < 3 * BlockChecksums::kBytes) ++at;
  EXPECT_EQ(store[at].token(0), examples[static_cast<size_t>(at)].tokens[0]);
  flip_a_bit(path, 8 + store.stored(at).offset * sizeof(MarkedToken));
  test::expect_error<DataError>([&] { store[at]; }, {"damaged", path.string(), "tokenized again"});
  EXPECT_EQ(store[0].token(0), examples[0].tokens[0]);
}

TEST_F(ExampleStores, AnUnfinishedFileDoesNotAppear) {
  {
    ExampleWriter writer(dir_ / "examples");
    for (const Example& example : random_examples(10, 6)) writer.add(example);
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace sftrun::data
