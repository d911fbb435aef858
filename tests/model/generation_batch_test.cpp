#include "sftrun/model/generation_batch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "sftrun/model/stage.h"
#include "sftrun/plan/answers_memory.h"

namespace sftrun::model {
namespace {

std::shared_ptr<const weights::Checkpoint> open_family(const std::string& kind) {
  return weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "families" / kind);
}

/// Continues a request until it ends; what its hooks were told.
struct Heard {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> of_prompt, of_answer;
  int num_stop_tokens = 0;
  bool is_finished = false;
};

BatchHooks hooks_into(std::map<size_t, Heard>& heard) {
  return {.on_token =
              [&heard](size_t index, NewToken&& token) {
                Heard& one = heard[index];
                one.num_stop_tokens += token.is_stop ? 1 : 0;
                if (token.logprobs) one.of_answer.push_back(std::move(*token.logprobs));
                return true;
              },
          .on_finished =
              [&heard](size_t index, Generation&& answer) {
                heard[index].tokens = std::move(answer.tokens);
                heard[index].is_finished = true;
              },
          .on_prompt_scores =
              [&heard](size_t index, std::vector<TokenLogprobs>&& scores) {
                heard[index].of_prompt = std::move(scores);
              }};
}

std::shared_ptr<SamplingOptions> greedy(int64_t max_new_tokens) {
  auto options = std::make_shared<SamplingOptions>();
  options->max_new_tokens = max_new_tokens;
  return options;
}

/// Log-probabilities of a text's tokens from the second on, as training computes its loss.
std::vector<float> scores_of(Decoder& decoder, const std::vector<int32_t>& tokens) {
  data::Batch batch;
  const auto length = static_cast<int32_t>(tokens.size());
  batch.tokens = tokens;
  batch.labels.assign(tokens.begin() + 1, tokens.end());
  batch.labels.push_back(data::kIgnoreIndex);
  for (int32_t i = 0; i < length; ++i) batch.position_ids.push_back(i);
  batch.cu_seqlens = {0, length};
  batch.document_keys = {0};
  batch.max_seqlen = length;
  const at::NoGradGuard no_grad;
  const PackedBatch packed = prepare_batch(batch, decoder.rope(), decoder.batch_target(), {});
  const at::Tensor losses = Stage(decoder).token_losses(packed).cpu();
  std::vector<float> scores;
  for (int64_t i = 0; i < losses.numel(); ++i) scores.push_back(-losses[i].item<float>());
  return scores;
}

class Logprobs : public ::testing::TestWithParam<std::string> {};

TEST_P(Logprobs, AreThoseOfTheTrainingLoss) {
  const auto decoder = Decoder::load(open_family(GetParam()), {});
  const std::vector<int32_t> prompt = {3, 14, 15, 9, 26, 5};
  std::map<size_t, Heard> heard;
  GenerationBatch batch(*decoder, 2, hooks_into(heard));
  batch.add({{.prompt = {.index = 7, .tokens = prompt},
              .options = greedy(5),
              .num_logprobs = 3,
              .scores_prompt = true}});
  while (batch.num_active() > 0) batch.step();
  const Heard& one = heard.at(7);
  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), one.tokens.begin(), one.tokens.end());
  const std::vector<float> expected = scores_of(*decoder, whole);
  std::vector<TokenLogprobs> all = one.of_prompt;
  all.insert(all.end(), one.of_answer.begin(), one.of_answer.end());
  ASSERT_EQ(all.size(), expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_NEAR(all[i].logprob, expected[i], 2e-4) << i;
    ASSERT_EQ(all[i].top.size(), 3U);
    EXPECT_GE(all[i].top[0].logprob, all[i].top[1].logprob);
    EXPECT_GE(all[i].top[0].logprob, all[i].logprob);
  }
  for (size_t i = 0; i < one.tokens.size(); ++i)  // greedy
    EXPECT_EQ(one.of_answer[i].top[0].token, one.tokens[i]);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Logprobs,
                         ::testing::Values("llama", "gemma2", "qwen3_5", "gpt_oss"),
                         [](const auto& param_info) { return param_info.param; });

TEST(GenerationBatch, SequencesWithTheirOwnOptionsComeAndGo) {
  const auto decoder = Decoder::load(open_family("llama"), {});
  const std::vector<std::vector<int32_t>> prompts = {{3, 4, 5}, {9, 8, 7, 6, 5, 4}, {2}};
  std::vector<std::shared_ptr<SamplingOptions>> options = {greedy(30), greedy(4), greedy(9)};
  options[2]->temperature = 1;
  options[2]->seed = 5;
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < prompts.size(); ++i)
    alone.push_back(generate(*decoder, {prompts[i]}, {0}, *options[i])[0].tokens);

  std::map<size_t, Heard> heard;
  GenerationBatch batch(*decoder, 3, hooks_into(heard));
  const auto request = [&](size_t i, size_t index) {
    return SequenceRequest{.prompt = {.index = index, .tokens = prompts[i]}, .options = options[i]};
  };
  batch.add({request(0, 0), request(1, 1)});
  batch.step();
  batch.add({request(2, 2)});
  EXPECT_EQ(batch.num_free(), 0U);
  while (!heard[1].is_finished) batch.step();
  batch.add({request(1, 3)});
  batch.drop([](size_t index) { return index == 0; });
  while (batch.num_active() > 0) batch.step();
  EXPECT_FALSE(heard[0].is_finished);
  EXPECT_EQ(heard[1].tokens, alone[1]);
  EXPECT_EQ(heard[2].tokens, alone[2]);
  EXPECT_EQ(heard[3].tokens, alone[1]);
}

TEST(GenerationBatch, ReportsAStopTokenThatIsNotPartOfTheAnswer) {
  const auto decoder = Decoder::load(open_family("llama"), {});
  const std::vector<int32_t> free =
      generate(*decoder, {{3, 4, 5}}, {0}, SamplingOptions{.max_new_tokens = 6})[0].tokens;
  auto options = greedy(6);
  options->stop_tokens = {free[0]};
  std::map<size_t, Heard> heard;
  GenerationBatch batch(*decoder, 1, hooks_into(heard));
  batch.add({{.prompt = {.tokens = {3, 4, 5}}, .options = options, .num_logprobs = 0}});
  EXPECT_EQ(batch.num_active(), 1U);
  batch.step();
  EXPECT_EQ(batch.num_active(), 0U);
  EXPECT_TRUE(heard[0].tokens.empty());
  EXPECT_EQ(heard[0].num_stop_tokens, 1);
  EXPECT_EQ(heard[0].of_answer.size(), 1U);
}

TEST(GenerationBatch, DropsSequencesThatAreNotReadYet) {
  const auto decoder = Decoder::load(open_family("llama"), {});
  std::map<size_t, Heard> heard;
  GenerationBatch batch(*decoder, 2, hooks_into(heard));
  const auto add = [&](size_t index) {
    batch.add({{.prompt = {.index = index, .tokens = {3, 4}}, .options = greedy(2)}});
  };
  add(0);
  batch.step();
  add(1);
  EXPECT_EQ(batch.num_free(), 0U);
  batch.drop([](size_t index) { return index == 1; });
  EXPECT_EQ(batch.num_free(), 1U);
  while (batch.num_active() > 0) batch.step();
  EXPECT_TRUE(heard[0].is_finished);
  EXPECT_FALSE(heard.contains(1));
}

TEST(GenerationBatch, NeedsAsMuchCacheAsItSays) {
  const auto decoder = Decoder::load(open_family("llama"), {});
  std::map<size_t, Heard> heard;
  GenerationBatch batch(*decoder, 8, hooks_into(heard));
  EXPECT_EQ(batch.cache_bytes(0, 0), 0U);
  const uint64_t expected = batch.cache_bytes(2, 100);
  EXPECT_EQ(expected, 200 * batch.bytes_of_sequence(1));
  batch.add({{.prompt = {.index = 0, .tokens = {3}}, .options = greedy(99)},
             {.prompt = {.index = 1, .tokens = {4, 5}}, .options = greedy(50)}});
  EXPECT_EQ(batch.cache_bytes(0, 0), expected);
  while (batch.num_active() > 0) batch.step();
  EXPECT_EQ(batch.cache_bytes(0, 0), expected) << "it grows to what was foreseen, not beyond";
  batch.reset();
  EXPECT_EQ(batch.cache_bytes(0, 0), 0U);
}

// From end to end: the probabilities are those of the training loss, tempered and cut.
TEST(SampledTokens, HaveTheModelsProbabilities) {
  const auto decoder = Decoder::load(open_family("llama"), {});
  const std::vector<int32_t> prompt = {3, 14, 15, 9};
  SamplingOptions options{.max_new_tokens = 1, .temperature = 0.6, .top_p = 0.9, .seed = 11};
  const int64_t vocab = decoder->arch().vocab_size;
  std::vector<std::pair<double, int32_t>> by_probability;
  for (int32_t token = 0; token < vocab; ++token) {
    std::vector<int32_t> text = prompt;
    text.push_back(token);
    by_probability.emplace_back(std::exp(scores_of(*decoder, text).back() / options.temperature),
                                token);
  }
  std::sort(by_probability.rbegin(), by_probability.rend());
  double all = 0, kept = 0;
  for (const auto& [weight, token] : by_probability) all += weight;
  std::map<int32_t, double> expected;
  for (const auto& [weight, token] : by_probability) {
    if (kept >= options.top_p * all) break;
    kept += weight;
    expected[token] = weight;
  }
  ASSERT_GT(expected.size(), 5U);
  ASSERT_LT(static_cast<int64_t>(expected.size()), vocab);

  constexpr size_t kDraws = 6000, kBatch = 100;
  std::map<int32_t, double> drawn;
  for (size_t first = 0; first < kDraws; first += kBatch) {
    std::vector<uint64_t> streams;
    for (size_t i = 0; i < kBatch; ++i) streams.push_back(first + i);
    const std::vector<std::vector<int32_t>> prompts(kBatch, prompt);
    for (const Generation& answer : generate(*decoder, prompts, streams, options))
      drawn[answer.tokens.at(0)] += 1;
  }
  for (const auto& [token, count] : drawn) EXPECT_TRUE(expected.contains(token)) << token;
  for (const auto& [token, weight] : expected) {
    const double share = weight / kept, deviation = std::sqrt(kDraws * share * (1 - share));
    EXPECT_NEAR(drawn[token], kDraws * share, 4.5 * deviation + 1) << token;
  }
}

TEST(SharedWeights, AreReadOnceAndGiveTheSameAnswers) {
  for (const char* kind : {"llama", "gemma3", "qwen3_moe"}) {
    SCOPED_TRACE(kind);
    const auto checkpoint = open_family(kind);
    DecoderOptions plain, adapted;
    plain.base.quant = adapted.base.quant = QuantOptions{};  // made, so not a view of the file
    adapted.trains = Trains::kLora;
    const auto own = Decoder::load(checkpoint, plain);
    plain.shared_weights = adapted.shared_weights = std::make_shared<SharedWeights>();
    const auto first = Decoder::load(checkpoint, adapted),
               second = Decoder::load(checkpoint, plain);
    const layers::Linear &a = *first->linears().front(), &b = *second->linears().front();
    ASSERT_TRUE(a.quantized && b.quantized);
    EXPECT_EQ(a.quantized->packed.data_ptr(), b.quantized->packed.data_ptr());
    EXPECT_EQ(first->head().norm.weight.data_ptr(), second->head().norm.weight.data_ptr());
    const SamplingOptions options{.max_new_tokens = 8};
    const auto answer = [&](Decoder& decoder) {
      return generate(decoder, {{5, 6, 7, 8}}, {0}, options)[0].tokens;
    };
    EXPECT_EQ(answer(*second), answer(*own));
    EXPECT_EQ(answer(*first), answer(*own)) << "a new adapter changes nothing";
    for (layers::Linear* linear : first->adapted_linears()) linear->lora->b->compute.fill_(0.5);
    EXPECT_NE(answer(*first), answer(*own));
    EXPECT_EQ(answer(*second), answer(*own)) << "an adapter is its decoder's alone";
  }
}

/// `sftrun memory-check` plans the cache that answers have.
TEST(GenerationBatches, TheirCacheIsPlanned) {
  config::RunConfig config;
  config.train.predict_with_generate = true;
  config.train.generation_batch_size = 3, config.train.generation_max_new_tokens = 7;
  config.model.max_seq_len = 10;
  for (const char* family : {"llama", "gemma3", "gemma4", "qwen3_moe", "gpt_oss"}) {
    const auto decoder = Decoder::load(open_family(family), {});
    const auto planned = plan::answers_memory(decoder->arch(), config, {.element_bytes = 4}, {});
    ASSERT_TRUE(planned.has_value());
    EXPECT_EQ(static_cast<uint64_t>(planned->cache),
              3 * (10 + 7) * GenerationBatch(*decoder, 3, {}).bytes_of_sequence(1))
        << family;
  }
}

}  // namespace
}  // namespace sftrun::model
