#include "sftrun/model/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "sftrun/core/rng.h"

namespace sftrun::model {
namespace {

std::unique_ptr<Decoder> load_family(const std::string& kind) {
  const std::filesystem::path directory =
      std::filesystem::path(SFTRUN_TEST_DATA) / "families" / kind;
  return Decoder::load(weights::Checkpoint::open(directory), {});
}

std::vector<std::vector<int32_t>> random_prompts(size_t count, int64_t vocab_size) {
  RandomStream random(7, 1);
  std::vector<std::vector<int32_t>> prompts(count);
  for (std::vector<int32_t>& prompt : prompts) {
    const auto length = static_cast<size_t>(1 + 40 * random.next_unit());
    while (prompt.size() < length) {
      const double token = random.next_unit() * static_cast<double>(vocab_size);
      prompt.push_back(static_cast<int32_t>(token));
    }
  }
  return prompts;
}

/// Answers in a batch of `batch_size`, and the number of active rows of each step.
struct Batched {
  std::vector<std::vector<int32_t>> answers;
  std::vector<size_t> active;
  std::vector<size_t> order;  ///< in which they finished
};
Batched generate_batched(Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                         const SamplingOptions& options, size_t batch_size) {
  Batched batched;
  batched.answers.resize(prompts.size());
  size_t taken = 0;
  generate(decoder, options, batch_size,
           {.next_prompt = [&]() -> std::optional<Prompt> {
              if (taken == prompts.size()) return std::nullopt;
              const size_t index = taken++;
              return Prompt{index, prompts[index], index};
            },
            .on_finished =
                [&](size_t index, Generation&& answer) {
                  batched.answers[index] = std::move(answer.tokens);
                  batched.order.push_back(index);
                },
            .before_step =
                [&](size_t active) {
                  batched.active.push_back(active);
                  return true;
                }});
  return batched;
}

class BatchedGeneration : public ::testing::TestWithParam<std::string> {};

// Windows, sinks, soft caps, borrowed keys, gated delta nets, mixtures of experts.
TEST_P(BatchedGeneration, EqualsOneByOne) {
  const auto decoder = load_family(GetParam());
  const auto prompts = random_prompts(7, decoder->arch().vocab_size);
  SamplingOptions options;
  options.max_new_tokens = 24;
  options.temperature = 1;
  // A tenth of the vocabulary ends an answer, so that answers have different lengths.
  for (int64_t token = 0; token < decoder->arch().vocab_size; token += 10)
    options.stop_tokens.push_back(token);
  std::vector<std::vector<int32_t>> alone;
  std::set<size_t> lengths;
  for (size_t i = 0; i < prompts.size(); ++i) {
    alone.push_back(generate(*decoder, {prompts[i]}, {i}, options)[0].tokens);
    lengths.insert(alone.back().size());
  }
  ASSERT_GT(lengths.size(), 3U);
  for (const size_t batch_size : {2, 5}) {
    SCOPED_TRACE(batch_size);
    EXPECT_EQ(generate_batched(*decoder, prompts, options, batch_size).answers, alone);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BatchedGeneration,
                         ::testing::Values("llama", "mistral", "gemma2", "gemma4", "gpt_oss",
                                           "qwen3_5", "mixtral", "phi3"),
                         [](const auto& param_info) { return param_info.param; });

TEST(BatchedGenerationRows, AreTakenAtOnceByTheNextPrompt) {
  const auto decoder = load_family("llama");
  const auto prompts = random_prompts(7, decoder->arch().vocab_size);
  SamplingOptions options;
  options.max_new_tokens = 24;
  options.temperature = 1;
  for (int64_t token = 0; token < decoder->arch().vocab_size; token += 10)
    options.stop_tokens.push_back(token);
  const Batched batched = generate_batched(*decoder, prompts, options, 3);
  EXPECT_FALSE(std::is_sorted(batched.order.begin(), batched.order.end()));
  // Full until the prompts are used up, then fewer and fewer.
  size_t tokens = 0, full = 0;
  for (const auto& answer : batched.answers) tokens += answer.size();
  while (full < batched.active.size() && batched.active[full] == 3) ++full;
  EXPECT_GT(3 * full, tokens / 2);
  EXPECT_TRUE(std::is_sorted(batched.active.rbegin(), batched.active.rend()));
}

TEST(BatchedGenerationRows, StopDropsWhatIsNotFinished) {
  const auto decoder = load_family("llama");
  const auto prompts = random_prompts(3, decoder->arch().vocab_size);
  SamplingOptions options;
  options.max_new_tokens = 10;
  size_t taken = 0, finished = 0;
  int steps = 0;
  generate(*decoder, options, 1,
           {.next_prompt = [&]() -> std::optional<Prompt> {
              return Prompt{taken, prompts[taken++], 0};
            },
            .on_finished = [&](size_t, Generation&&) { ++finished; },
            .before_step = [&](size_t) { return ++steps <= 12; }});
  EXPECT_EQ(finished, 1U);
  EXPECT_EQ(taken, 2U);
}

/// LongRoPE's angles change at 8 tokens, where sequences are read again: with a state one in a pass.
TEST(Generate, SequencesWithStatesThatChangeTheirAnglesTogether) {
  spec::ArchSpec arch =
      weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "families" / "qwen3_5")
          ->arch();
  spec::RopeSpec& rope = arch.ropes[0];
  rope.type = spec::RopeType::kLongRope;
  rope.original_max_position_embeddings = 8;
  const auto pairs = static_cast<size_t>(rope.rotary_dim / 2);
  rope.short_factor.assign(pairs, 1.0F), rope.long_factor.assign(pairs, 3.0F);
  const auto decoder = Decoder::random(arch, {});
  SamplingOptions options;
  options.max_new_tokens = 12;
  const std::vector<std::vector<int32_t>> prompts = {{3, 1, 4, 1, 5}, {2, 7, 1, 8, 2}};
  const auto together = generate(*decoder, prompts, {0, 1}, options);
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(together[i].tokens, generate(*decoder, {prompts[i]}, {i}, options)[0].tokens);
}

}  // namespace
}  // namespace sftrun::model
