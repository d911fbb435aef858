#include <cmath>
#include <limits>

#include "noise/embedding_noise_launch.h"
#include "sftrun/core/rng.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

/// Of multiples of 8 a thread takes 8, a block 2048 at a time; of others 4 and 1024.
constexpr int64_t kChannels[] = {0,    1,    3,    4,    5,    7,    8,    9,
                                 12,   16,   31,   64,   100,  1023, 1024, 1025,
                                 1029, 2047, 2048, 2049, 2056, 4096, 4104, 6000};
const std::vector<std::vector<int32_t>> kDocuments = {
    {}, {1}, {3}, {0, 2}, {2, 0, 0, 1}, {1, 1, 1, 1, 1}, {0, 0, 4, 0, 3, 0}, {5, 1, 7, 2, 0, 9}};

SFTRUN_FOR_TYPES(CudaNoise);

constexpr NoiseParams kParams{.seed = 0xfedcba9876543210ULL, .step = 41, .scaled_alpha = 7.5};

struct Batch {
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<TokenKey> tokens;

  explicit Batch(const std::vector<int32_t>& lengths) {
    for (const int32_t length : lengths) {
      cu_seqlens.push_back(cu_seqlens.back() + length);
      for (int32_t i = 0; i < length; ++i)
        tokens.push_back(
            {static_cast<uint32_t>(70'000 * cu_seqlens.size()), static_cast<uint32_t>(4095 + i)});
    }
  }
  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  int64_t documents() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
};

/// noise.h's, of a document's token.
float noise_of(TokenKey token, int64_t length, int64_t channel, int64_t channels) {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(kParams.seed) ^ kParams.step,
                                       static_cast<uint32_t>(kParams.seed >> 32)};
  const Philox4 words = philox4x32(
      {static_cast<uint32_t>(channel / 4), token.position, token.document, 0xFFFFFFFFU}, key);
  const double unit =
      std::ldexp(static_cast<double>(words[static_cast<size_t>(channel % 4)] >> 8), -23) - 1;
  const auto magnitude =
      static_cast<float>(kParams.scaled_alpha / std::sqrt(static_cast<double>(length * channels)));
  return static_cast<float>(magnitude * unit);  // a product of two fp32 numbers is exact in fp64
}

std::vector<float> expected_of(std::vector<float> x, const Batch& batch, int64_t channels) {
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int64_t begin = batch.cu_seqlens[document], end = batch.cu_seqlens[document + 1];
    for (int64_t row = begin; row < end; ++row)
      for (int64_t channel = 0; channel < channels; ++channel)
        x[static_cast<size_t>(row * channels + channel)] +=
            noise_of(batch.tokens[static_cast<size_t>(row)], end - begin, channel, channels);
  }
  return x;
}

void expect_noise(Type type, const std::vector<int32_t>& lengths, int64_t channels, int64_t shift,
                  std::vector<float> values) {
  const Batch batch(lengths);
  values = rounded(type, values);
  const Memory tokens = Memory::raw(batch.tokens), cu_seqlens = Memory::raw(batch.cu_seqlens),
               step = Memory::raw(std::vector<uint32_t>{kParams.step});
  NoiseParams of_another_step = kParams;
  of_another_step.step += 1;
  const auto out = in_every_order([&] {
    std::vector<Memory> made{Memory::of(type, values, shift)};
    launch_embedding_noise(type, made[0].data(), tokens.as<TokenKey>(), step.as<uint32_t>(),
                           cu_seqlens.as<int32_t>(), batch.documents(), batch.rows(), channels,
                           of_another_step, nullptr);
    return made;
  });
  EXPECT_TRUE(same(type, out[0], rounded(type, expected_of(values, batch, channels))));
}

void expect_noise(Type type, const std::vector<int32_t>& lengths, int64_t channels,
                  int64_t shift = 0) {
  expect_noise(type, lengths, channels, shift, normal(Batch(lengths).rows() * channels, 1, 0.02F));
}

TEST_P(CudaNoise, IsAddedToTheBit) {
  for_each("channels", kChannels, [&](int64_t channels) {
    for (const int64_t shift : kShifts) expect_noise(type(), {2, 1}, channels, shift);
  });
  for_each("documents", kDocuments, [&](const std::vector<int32_t>& lengths) {
    expect_noise(type(), lengths, 37);
    expect_noise(type(), lengths, 64);
  });
  expect_noise(type(), std::vector<int32_t>(33, 2), 16);
  expect_noise(type(), {300}, 8);
}

TEST_P(CudaNoise, KeepsNaN) {
  std::vector<float> values = normal(3 * 40, 2);
  for (size_t i = 0; i < values.size(); i += 7)
    values[i] = i % 2 == 0 ? std::nanf("") : -std::numeric_limits<float>::infinity();
  expect_noise(type(), {1, 2}, 40, 0, values);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
