#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

/// Steps of the last place between two positive floats.
int64_t ulps_between(float a, float b) {
  int32_t x, y;
  std::memcpy(&x, &a, 4);
  std::memcpy(&y, &b, 4);
  return std::abs(static_cast<int64_t>(x) - y);
}

TEST(RopeTable, EqualsTransformers) {
  std::ifstream file(SFTRUN_TEST_DATA "/spec/rope.json");
  const json cases = json::parse(file);
  ASSERT_EQ(cases.size(), 15U);
  for (const json& expected : cases) {
    SCOPED_TRACE(expected["config"].dump());
    const ArchSpec arch = ArchSpec::from_hf_config(expected["config"], "config.json");
    const RopeTable table = rope_table(arch.ropes[0], expected["seq_len"].get<int64_t>());
    ASSERT_EQ(table.inv_freq.size(), expected["inv_freq"].size());
    EXPECT_FLOAT_EQ(table.attention_scaling, expected["attention_scaling"].get<float>());
    for (size_t i = 0; i < table.inv_freq.size(); ++i) {
      // torch's vectorised pow is good to one unit; blends of two such values add theirs.
      EXPECT_LE(ulps_between(table.inv_freq[i], expected["inv_freq"][i].get<float>()), 2)
          << "frequency " << i;
    }
  }
}

RopeSpec small_rope() {
  RopeSpec rope;
  rope.rotary_dim = 64;
  rope.max_position_embeddings = 2048;
  return rope;
}

TEST(RopeTable, DivisorsDivide) {
  RopeSpec rope = small_rope();
  const std::vector<float> plain = rope_table(rope, 1).inv_freq;
  rope.divisors.assign(32, 2.0F);
  const std::vector<float> divided = rope_table(rope, 1).inv_freq;
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(divided[i], plain[i] / 2.0F);
}

/// What llama.cpp's converter writes for these parameters, in fp32.
std::vector<float> divisors_of(const RopeSpec& plain, const RopeSpec& scaled) {
  const std::vector<float> base = rope_table(plain, 1).inv_freq,
                           table = rope_table(scaled, 1).inv_freq;
  std::vector<float> divisors;
  for (size_t i = 0; i < base.size(); ++i) divisors.push_back(base[i] / table[i]);
  return divisors;
}

TEST(RopeDivisors, Llama3IsRecognised) {
  for (const auto& [factor, original] :
       {std::pair{8.0, 8192}, {32.0, 8192}, {8.0, 32}, {4.0, 1024}}) {
    RopeSpec rope = small_rope();
    rope.theta = 500000.0;
    RopeSpec scaled = rope;
    scaled.type = RopeType::kLlama3;
    scaled.factor = factor;
    scaled.original_max_position_embeddings = original;
    set_rope_divisors(rope, divisors_of(rope, scaled), "model.gguf");
    EXPECT_EQ(rope.type, RopeType::kLlama3);
    EXPECT_EQ(rope.factor, factor);
    EXPECT_EQ(rope.original_max_position_embeddings, original);
    EXPECT_TRUE(rope.divisors.empty());
  }
}

TEST(RopeDivisors, OthersAreKept) {
  ArchSpec arch;
  arch.family = "llama";
  RopeSpec& rope = arch.ropes[0];
  rope = small_rope();
  std::vector<float> divisors(32, 1.0F);
  set_rope_divisors(rope, divisors, "model.gguf");
  EXPECT_TRUE(rope.divisors.empty()) << "all ones change nothing";
  for (size_t i = 0; i < divisors.size(); ++i)
    divisors[i] = 1.0F + 0.1F * static_cast<float>(i % 5);
  set_rope_divisors(rope, divisors, "model.gguf");
  EXPECT_EQ(rope.type, RopeType::kDefault);
  EXPECT_EQ(rope.divisors, divisors);
  EXPECT_ANY_THROW(arch.to_hf_config());
}

TEST(RopeDivisors, UnsoundOnesAreRefused) {
  RopeSpec rope = small_rope();
  EXPECT_ANY_THROW(set_rope_divisors(rope, std::vector<float>(31, 1.0F), "model.gguf"));
  EXPECT_ANY_THROW(set_rope_divisors(rope, std::vector<float>(32, 0.0F), "model.gguf"));
  EXPECT_ANY_THROW(set_rope_divisors(
      rope, std::vector<float>(32, std::numeric_limits<float>::quiet_NaN()), "model.gguf"));
}

}  // namespace
}  // namespace sftrun::spec
