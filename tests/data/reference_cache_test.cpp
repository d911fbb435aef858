#include "sftrun/data/reference_cache.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/data/batch_plan.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

using Values = std::vector<double>;

const Values kLogps = {-1.5, -0.0, -1e-300, -12345.678901234567};

TEST(ReferenceCache, GivesBackEveryBit) {
  const test::TemporaryDirectory directory;
  const ReferenceCache cache((directory / "data").string());
  EXPECT_EQ(cache.read("a1", 4), std::nullopt);
  cache.write("a1", kLogps);
  EXPECT_EQ(cache.read("a1", 4), kLogps);
  EXPECT_EQ(cache.read("b2", 4), std::nullopt) << "of another model, or other data";
  cache.write("b2", {});
  EXPECT_EQ(cache.read("b2", 0), Values());
  EXPECT_EQ(ReferenceCache((directory / "data").string()).read("a1", 4), kLogps);
}

/// Every file that is not whole, or not of so many values, is not read.
TEST(ReferenceCache, DamagedFilesAreNotRead) {
  const test::TemporaryDirectory directory;
  const ReferenceCache cache(directory.path().string());
  cache.write("a1", kLogps);
  EXPECT_EQ(cache.read("a1", 3), std::nullopt);
  EXPECT_EQ(cache.read("a1", 5), std::nullopt);
  const std::filesystem::path file = directory / "reference" / "a1.logps";
  const std::string whole = read_text_file(file);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 1);
    write_file_atomically(file, other);
    EXPECT_EQ(cache.read("a1", 4), std::nullopt) << at;
    write_file_atomically(file, whole.substr(0, at));
    EXPECT_EQ(cache.read("a1", 4), std::nullopt) << at;
  }
  write_file_atomically(file, whole);
  EXPECT_EQ(cache.read("a1", 4), kLogps);
}

TEST(ReferenceCache, NoneKeepsNothing) {
  const ReferenceCache cache("none");
  cache.write("a1", kLogps);
  EXPECT_EQ(cache.read("a1", 4), std::nullopt);
}

Example example_of(std::vector<int32_t> tokens, std::vector<int32_t> labels) {
  Example example{.tokens = std::move(tokens), .labels = std::move(labels)};
  for (const int32_t label : example.labels) example.label_tokens += label != kIgnoreIndex ? 1 : 0;
  return example;
}

std::vector<Example> three_examples() {
  return {example_of({1, 2, 3}, {2, 3, kIgnoreIndex}), example_of({4, 5}, {5, kIgnoreIndex}),
          example_of({6, 7}, {7, kIgnoreIndex})};
}

TEST(ReferenceCache, ExamplesAreKnownByTokensAndLabels) {
  const std::vector<Example> examples = three_examples();
  const auto hash = [](const std::vector<Example>& of) {
    return hash_of_examples(ExampleStore::in_memory(of));
  };
  EXPECT_EQ(hash(examples), hash(three_examples()));
  auto other = examples;
  other[1].tokens[1] = other[1].labels[0] = 8;
  EXPECT_NE(hash(other), hash(examples));
  other = examples;
  other[0].labels[0] = kIgnoreIndex;
  EXPECT_NE(hash(other), hash(examples));
  other = examples;
  std::swap(other[1], other[2]);
  EXPECT_NE(hash(other), hash(examples));
  EXPECT_NE(hash({examples[0]}), hash(examples));
}

/// A batch has the values of its documents, and 0 for those that lost their labels.
TEST(ReferenceLogps, ComeWithTheExamplesOfABatch) {
  ExampleStore store = ExampleStore::in_memory(three_examples());
  const std::vector<Bin> bins = {{2, 0}, {1}};
  EXPECT_FALSE(make_batch(store, bins, 0, 2).reference_logps);
  const ExampleStore before = store;
  store.set_reference_logps({-1, -2, -3});
  EXPECT_EQ(before.reference_logps(), nullptr);
  EXPECT_EQ(make_batch(store, bins, 0, 2).reference_logps, (Values{-3, -1, -2}));
  EXPECT_EQ(make_batch(store, bins, 1, 1).reference_logps, Values{-2});
  EXPECT_EQ(make_batch(store, bins, 2, 1).reference_logps, Values()) << "an empty micro-batch";
  EXPECT_EQ(make_batch(store, bins, 0, 2, {0}).reference_logps, (Values{-3, 0, -2}));
  EXPECT_EQ(store.select({1}).reference_logps(), nullptr) << "its examples have other numbers";
}

}  // namespace
}  // namespace sftrun::data
