#include <limits>

#include "dropout/dropout_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

/// Of multiples of 64 a thread takes 64, a block 16384; of others 8 and 2048.
constexpr int64_t kChannels[] = {0,    1,    7,    8,    9,    15,   16,   17,   31,  33,  40,
                                 64,   72,   120,  128,  136,  255,  257,  320,  576, 584, 1000,
                                 1024, 2047, 2048, 2049, 2056, 2112, 4095, 4096, 4097};
constexpr int64_t kRows[] = {0, 1, 3};
constexpr uint32_t kThresholds[] = {0, 20000, 65535};

SFTRUN_FOR_TYPES(CudaDropout);

constexpr uint32_t kStep = 41;

DropoutParams params_of(uint32_t threshold) {
  return {.seed = 0x123456789abcdef0ULL,
          .step = kStep,
          .module = 9,
          .threshold = threshold,
          .scale = 1 / (1 - static_cast<float>(threshold) / 65536)};
}

std::vector<TokenKey> tokens_of(int64_t rows) {
  std::vector<TokenKey> tokens;
  for (int64_t row = 0; row < rows; ++row)
    tokens.push_back({static_cast<uint32_t>(row * 70000), static_cast<uint32_t>(17 * row + 4095)});
  return tokens;
}

std::vector<float> by_cpu(const Memory& x, Type type, const std::vector<TokenKey>& tokens,
                          int64_t channels, const DropoutParams& params) {
  const auto rows = static_cast<int64_t>(tokens.size());
  std::vector<float> of = floats(type, x), y(of.size());
  cpu_kernels().f32.dropout(of.data(), y.data(), tokens.data(), rows, channels, params);
  const std::vector<float> expected = rounded(type, y);
  if (type == Type::kBFloat16) {
    const Memory own = Memory::nans(type, rows * channels);
    cpu_kernels().bf16.dropout(bf16(x), own.as<uint16_t>(), tokens.data(), rows, channels, params);
    EXPECT_TRUE(same(type, own, expected));
  }
  return expected;
}

void expect_dropped(Type type, int64_t rows, int64_t channels, uint32_t threshold, int64_t shift,
                    int64_t shift_of_y) {
  std::vector<float> values = normal(rows * channels, 1);
  for (size_t i = 0; i < values.size(); i += 5)
    values[i] = i % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
  const Memory x = Memory::of(type, values, shift);
  const std::vector<TokenKey> tokens = tokens_of(rows);
  const Memory keys = Memory::raw(tokens), step = Memory::raw(std::vector<uint32_t>{kStep});
  const DropoutParams params = params_of(threshold);
  DropoutParams of_another_step = params;
  of_another_step.step = kStep + 1;
  const auto out = in_every_order([&] {
    std::vector<Memory> made{Memory::nans(type, rows * channels, shift_of_y)};
    launch_dropout(type, x.data(), made[0].data(), keys.as<TokenKey>(), step.as<uint32_t>(), rows,
                   channels, of_another_step, nullptr);
    return made;
  });
  EXPECT_TRUE(same(type, out[0], by_cpu(x, type, tokens, channels, params)));
}

TEST_P(CudaDropout, IsTheCpusToTheBit) {
  for_each("channels", kChannels, [&](int64_t channels) {
    for_each("rows", kRows, [&](int64_t rows) {
      for (const int64_t shift : kShifts)
        expect_dropped(type(), rows, channels, 20000, shift, shift);
    });
  });
  expect_dropped(type(), 65, 40, 6554, 0, 0);
  expect_dropped(type(), 65, 64, 6554, 0, 0);
  expect_dropped(type(), 1, 16384, 6554, 0, 0);
  expect_dropped(type(), 2, 16448, 6554, 0, 0);
  expect_dropped(type(), 2, 128, 6554, 1, 0);
  expect_dropped(type(), 2, 128, 6554, 0, 1);
  for_each("threshold", kThresholds, [&](uint32_t threshold) {
    expect_dropped(type(), 2, 100, threshold, 0, 0);
    expect_dropped(type(), 2, 192, threshold, 0, 0);
  });
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
