#include <limits>

#include "cross_entropy/cross_entropy_launch.h"
#include "sftrun/kernels/cpu_table.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

struct Case {
  int64_t rows, vocab;
  float cap;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.rows << " x " << c.vocab << ", cap " << c.cap;
}
/// Rows of a multiple of 8 are read in words of 16 bytes, 2048 logits at a time.
constexpr Case kCases[] = {
    {0, 17, 0},    {1, 1, 0},      {2, 1, 5},     {3, 7, 0},    {3, 8, 0},     {3, 9, 0},
    {65, 16, 0},   {65, 17, 0},    {3, 24, 5},    {2, 17, 5},   {2, 31, 0},    {2, 33, 30},
    {1, 255, 0},   {2, 256, 0},    {3, 257, 0},   {3, 1000, 0}, {3, 1000, 30}, {1, 2047, 0},
    {3, 2048, 5},  {3, 2056, 0},   {1, 4095, 5},  {1, 4096, 0}, {2, 4097, 50}, {3, 4104, 50},
    {1, 49151, 0}, {1, 49147, 30}, {2, 49152, 30}};
constexpr float kGradScale = 0.125F;

SFTRUN_FOR_TYPES(CudaCrossEntropy);

std::vector<int32_t> labels_of(const Case& c) {
  std::vector<int32_t> labels;  // the first, the last, and others
  for (int64_t row = 0; row < c.rows; ++row)
    labels.push_back(static_cast<int32_t>(row % 3 == 0   ? 0
                                          : row % 3 == 1 ? c.vocab - 1
                                                         : row * 37 % c.vocab));
  return labels;
}

struct Expected {
  std::vector<Exact> losses, gradients;
};

void add_row(const float* logits, int32_t label, const Case& c, Expected& all) {
  const double cap = c.cap;
  const auto value = [&](int64_t i) {
    return cap > 0 ? cap * std::tanh(logits[i] / cap) : double{logits[i]};
  };
  double largest = value(0), sum = 0;
  for (int64_t i = 0; i < c.vocab; ++i) largest = std::fmax(largest, value(i));
  for (int64_t i = 0; i < c.vocab; ++i) sum += std::exp(value(i) - largest);
  const double loss = largest + std::log(sum) - value(label);
  // A cap's error is that of numbers as large as it.
  const double spread = std::fabs(largest) + std::fabs(value(label)) + 1 + cap;
  all.losses.push_back({loss, spread + std::log(sum)});
  for (int64_t i = 0; i < c.vocab; ++i) {
    const double part = value(i) / (cap > 0 ? cap : 1), slope = cap > 0 ? 1 - part * part : 1;
    const double p = std::exp(value(i) - largest) / sum, off = i == label ? p - 1 : p;
    const double steep = cap > 0 ? 1 + part * part : 1;
    const double size = p * (spread + std::fabs(value(i)) + std::log(sum)) + (i == label ? 1 : 0);
    all.gradients.push_back({off * kGradScale * slope, size * kGradScale * steep});
  }
}

Expected expected_of(const std::vector<float>& logits, const std::vector<int32_t>& labels,
                     const Case& c) {
  Expected all;
  for (int64_t row = 0; row < c.rows; ++row)
    add_row(logits.data() + row * c.vocab, labels[static_cast<size_t>(row)], c, all);
  return all;
}

struct Result {
  Memory losses, gradients;
};
template <typename T>
Result by_cpu(const RowKernels<T>& kernels, const Memory& logits,
              const std::vector<int32_t>& labels, const Case& c) {
  Result made{Memory::nans(Type::kFloat32, c.rows), logits};
  kernels.cross_entropy(made.gradients.as<T>(), labels.data(), made.losses.as<float>(), c.rows,
                        c.vocab, c.cap, kGradScale, nullptr);
  return made;
}
Result by_cpu(Type type, const Memory& logits, const std::vector<int32_t>& labels, const Case& c) {
  if (type == Type::kFloat32) return by_cpu(cpu_kernels().f32, logits, labels, c);
  return by_cpu(cpu_kernels().bf16, logits, labels, c);
}

/// Losses with the gradient and without, and the gradients.
std::vector<Memory> by_cuda(Type type, const Memory& logits, const std::vector<int32_t>& labels,
                            const Case& c, int64_t shift,
                            const LossGradient& gradient = {.is_wanted = true,
                                                            .scale = kGradScale}) {
  const Memory of = Memory::raw(labels, shift);
  return in_every_order([&] {
    std::vector<Memory> made{Memory::nans(Type::kFloat32, c.rows, shift), logits,
                             Memory::nans(Type::kFloat32, c.rows, shift), logits};
    launch_cross_entropy(type, made[1].data(), of.as<int32_t>(), made[0].as<float>(), c.rows,
                         c.vocab, c.cap, gradient, nullptr);
    launch_cross_entropy(type, made[3].data(), of.as<int32_t>(), made[2].as<float>(), c.rows,
                         c.vocab, c.cap, {}, nullptr);
    return made;
  });
}

void expect_losses(Type type, const Case& c, int64_t shift) {
  const Memory logits = Memory::of(type, normal(c.rows * c.vocab, 1, 4), shift);
  const std::vector<int32_t> labels = labels_of(c);
  const auto out = by_cuda(type, logits, labels, c, shift);
  EXPECT_TRUE(out[2] == out[0]) << "losses without the gradient";
  EXPECT_TRUE(out[3] == logits) << "logits that stay as they are";
  const Expected expected = expected_of(floats(type, logits), labels, c);
  const double roundings = of_loss(c.vocab);
  EXPECT_TRUE(close(Type::kFloat32, out[0], expected.losses, roundings));
  EXPECT_TRUE(close(type, out[1], expected.gradients, roundings));
  if (type == Type::kFloat16) return;
  const Result cpu = by_cpu(type, logits, labels, c);
  EXPECT_TRUE(
      close_to_cpu(Type::kFloat32, out[0], cpu.losses.to<float>(), expected.losses, roundings));
  EXPECT_TRUE(
      close_to_cpu(type, out[1], floats(type, cpu.gradients), expected.gradients, roundings));
}

TEST_P(CudaCrossEntropy, LossesAndGradients) {
  for_each("case", kCases, [&](const Case& c) {
    for (const int64_t shift : kShifts)
      if (shift == 0 || c.vocab <= 1000) expect_losses(type(), c, shift);
  });
}

/// A factor on the device, times the scale.
TEST_P(CudaCrossEntropy, FactorOfTheGradient) {
  for (const int64_t vocab : {300, 304}) {
    const Case c{5, vocab, 0};
    const Memory logits = Memory::of(type(), normal(c.rows * c.vocab, 1, 4)),
                 factor = Memory::raw(std::vector<float>{0.25F});
    const auto labels = labels_of(c);
    const auto plain = by_cuda(type(), logits, labels, c, 0);
    const auto scaled =
        by_cuda(type(), logits, labels, c, 0,
                {.is_wanted = true, .scale = kGradScale / 0.25F, .factor = factor.as<float>()});
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i] == scaled[i]) << i;
  }
}

/// A factor for each row on the device: powers of two, so that nothing is rounded.
TEST_P(CudaCrossEntropy, FactorsOfTheRows) {
  for (const int64_t vocab : {300, 304}) {
    const Case c{5, vocab, 5};
    const std::vector<float> factors = {2, -0.5F, 1, 0, 0.25F};
    const Memory logits = Memory::of(type(), normal(c.rows * c.vocab, 1, 4)),
                 of_rows = Memory::raw(factors);
    std::vector<int32_t> labels = labels_of(c);
    labels[2] = -100;
    const auto plain = by_cuda(type(), logits, labels, c, 0);
    const auto scaled =
        by_cuda(type(), logits, labels, c, 0,
                {.is_wanted = true, .scale = kGradScale, .row_factors = of_rows.as<float>()});
    for (const size_t i : {0, 2, 3}) EXPECT_TRUE(plain[i] == scaled[i]) << i;
    const std::vector<float> expected = floats(type(), plain[1]), got = floats(type(), scaled[1]);
    for (size_t i = 0; i < got.size(); ++i) {
      const float exact = expected[i] * factors[i / static_cast<size_t>(vocab)];
      // Half precision rounds subnormal numbers to 2^-24.
      ASSERT_NEAR(got[i], exact, type() == Type::kFloat16 ? 1.2e-7 : 0) << i;
    }
  }
}

/// Whatever its logits are, a row with a negative label has no part in anything.
TEST_P(CudaCrossEntropy, RowsWithoutALabel) {
  for (const int64_t vocab : {1, 17, 300, 304, 4097}) {
    const Case c{5, vocab, 0};
    std::vector<float> values = normal(c.rows * c.vocab, 1, 4);
    values[static_cast<size_t>(vocab)] = std::nanf("");
    const Memory logits = Memory::of(type(), values);
    std::vector<int32_t> labels = labels_of(c), shown = labels;
    labels[1] = labels[4] = -100;
    const auto out = by_cuda(type(), logits, labels, c, 0),
               others = by_cuda(type(), logits, shown, c, 0);
    for (int64_t row = 0; row < c.rows; ++row) {
      const bool counts = row != 1 && row != 4;
      const auto at = static_cast<size_t>(row);
      const float loss = out[0].as<float>()[at];
      EXPECT_EQ(loss, counts ? others[0].as<float>()[at] : 0) << row;
      EXPECT_EQ(out[2].as<float>()[at], loss) << row;
      const std::vector<float> got = floats(type(), out[1]), expected = floats(type(), others[1]);
      for (size_t i = at * static_cast<size_t>(vocab); i < (at + 1) * static_cast<size_t>(vocab);
           ++i)
        ASSERT_EQ(got[i], counts ? expected[i] : 0) << row;
    }
  }
}

/// A logit that is NaN or infinite makes the loss of its row NaN, and of no other row; one of minus
/// infinity has no part in it.
void expect_no_numbers(Type type, int64_t vocab) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Case c{4, vocab, 0};
  const auto row_size = static_cast<size_t>(vocab);
  std::vector<float> values = normal(c.rows * c.vocab, 1);
  values[7] = std::nanf(""), values[2 * row_size - 1] = infinity;
  values[2 * row_size + 5] = -infinity;
  const Memory logits = Memory::of(type, values);
  const std::vector<int32_t> labels = {8, 0, 9, 1};
  const auto out = by_cuda(type, logits, labels, c, 0);
  const auto* losses = out[0].as<float>();
  EXPECT_TRUE(std::isnan(losses[0]));
  EXPECT_TRUE(std::isnan(losses[1]));
  const Expected expected = expected_of(floats(type, logits), labels, c);
  for (const size_t row : {2, 3}) {
    EXPECT_NEAR(losses[row], expected.losses[row].value, 1e-5);
    EXPECT_EQ(floats(type, out[1])[2 * row_size + 5], 0);
  }
}
TEST(CudaCrossEntropyOnce, NaNLogits) {
  for_each("type", kTypes, [](Type type) {
    expect_no_numbers(type, 300);
    expect_no_numbers(type, 304);
  });
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
