#include <algorithm>
#include <cmath>
#include <limits>

#include "../../support/adamw_params.h"
#include "adamw/adamw_launch.h"
#include "cuda/algorithms.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

/// Where all is aligned a thread takes eight, a block 2048, and the last ones one by one.
constexpr int64_t kSizes[] = {0,   1,   7,    8,    9,    15,   16,   31,   32,   33,  255,
                              256, 257, 1000, 2047, 2048, 2049, 2056, 4095, 4096, 4097};

SFTRUN_FOR_TYPES(CudaAdamW);

struct Inputs {
  Memory param, grad, exp_avg, exp_avg_sq;
};
/// Of each operand.
struct Shifts {
  int64_t param = 0, grad = 0, exp_avg = 0, exp_avg_sq = 0, copy = 0;
};
constexpr Shifts all_by(int64_t shift) {
  return {shift, shift, shift, shift, shift};
}
Inputs inputs(int64_t n, const Shifts& shifts) {
  std::vector<float> squares = normal(n, 4);
  for (float& value : squares) value *= value;
  return {Memory::raw(normal(n, 1), shifts.param), Memory::raw(normal(n, 2), shifts.grad),
          Memory::raw(normal(n, 3), shifts.exp_avg), Memory::raw(squares, shifts.exp_avg_sq)};
}

struct Expected {
  std::vector<Exact> param, exp_avg, exp_avg_sq;
};
Expected expected_of(const Inputs& in, int64_t n) {
  const AdamWParams& a = kAdamWStep;
  Expected all;
  for (int64_t i = 0; i < n; ++i) {
    const double p = in.param.as<float>()[i], g = double{in.grad.as<float>()[i]} * a.grad_scale,
                 m0 = in.exp_avg.as<float>()[i], v0 = in.exp_avg_sq.as<float>()[i];
    const double m = m0 + a.one_minus_beta1 * (g - m0),
                 v = v0 * a.beta2 + a.one_minus_beta2 * g * g;
    const double m_size = std::fabs(m0) + a.one_minus_beta1 * (std::fabs(g) + std::fabs(m0));
    const double step = double{a.learning_rate} / a.bias_correction1,
                 denominator = std::sqrt(v) / a.sqrt_bias_correction2 + a.epsilon;
    all.exp_avg.push_back({m, m_size});
    all.exp_avg_sq.push_back({v, v});
    all.param.push_back(
        {p * (1 - double{a.learning_rate} * a.weight_decay) - step * m / denominator,
         std::fabs(p) + step * m_size / denominator});
  }
  return all;
}

/// Parameters, both moments, and the copy of `type`.
std::vector<Memory> by_cuda(Type type, const Inputs& in, int64_t n, int64_t shift, bool with_copy) {
  return in_every_order([&] {
    std::vector<Memory> made{in.param, in.exp_avg, in.exp_avg_sq, Memory::nans(type, n, shift)};
    launch_adamw(type, made[0].as<float>(), in.grad.as<float>(), made[1].as<float>(),
                 made[2].as<float>(), with_copy ? made[3].data() : nullptr, n, kAdamWStep, nullptr);
    return made;
  });
}

void expect_step(Type type, int64_t n, const Shifts& shifts) {
  const Inputs in = inputs(n, shifts);
  const auto out = by_cuda(type, in, n, shifts.copy, true),
             alone = by_cuda(type, in, n, shifts.copy, false);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(alone[i] == out[i]) << "without a copy, " << i;
  EXPECT_TRUE(alone[3] == Memory::nans(type, n));
  EXPECT_TRUE(same(type, out[3], rounded(type, out[0].to<float>())));
  Inputs cpu = in;
  cpu_kernels().adamw(cpu.param.as<float>(), cpu.grad.as<float>(), cpu.exp_avg.as<float>(),
                      cpu.exp_avg_sq.as<float>(), nullptr, n, kAdamWStep);
  const Expected expected = expected_of(in, n);
  const std::vector<Exact>* each[] = {&expected.param, &expected.exp_avg, &expected.exp_avg_sq};
  const Memory* of_cpu[] = {&cpu.param, &cpu.exp_avg, &cpu.exp_avg_sq};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(close(Type::kFloat32, out[i], *each[i], kAdamW)) << i;
    EXPECT_TRUE(close_to_cpu(Type::kFloat32, out[i], of_cpu[i]->to<float>(), *each[i], kAdamW))
        << i;
  }
}

TEST_P(CudaAdamW, Step) {
  for_each("size", kSizes, [&](int64_t n) {
    for_each("shift", kShifts, [&](int64_t shift) { expect_step(type(), n, all_by(shift)); });
  });
}

/// Whichever operand is not aligned, words of 16 bytes are read only of what is.
TEST_P(CudaAdamW, EachAtAnyAddress) {
  constexpr Shifts kOne[] = {
      {.param = 1}, {.grad = 1}, {.exp_avg = 1}, {.exp_avg_sq = 1}, {.copy = 1}};
  for (const Shifts& shifts : kOne)
    for (const int64_t n : {64, 100}) expect_step(type(), n, shifts);
}

// ---- Moments in 8 bits: to the bit what the CPU has.

constexpr AdamW8bitParams kParams8 = {.beta1 = 0.9F,
                                      .one_minus_beta1 = 0.1F,
                                      .beta2 = 0.999F,
                                      .one_minus_beta2 = 0.001F,
                                      .epsilon = 1e-8F,
                                      .step_size = -3e-3F,
                                      .decay = 0.9995F,
                                      .sqrt_bias_correction2 = 0.0893F,
                                      .grad_scale = 0.37F};

/// 256 ascending values, denser about 0, and the codes and bounds that belong to them. Which values
/// they are is dynamic_map.cpp's, of LibTorch.
class Map {
 public:
  explicit Map(bool is_signed) {
    for (int code = 0; code < 256; ++code) {
      const float x = is_signed ? (static_cast<float>(code) - 127.5F) / 127.5F
                                : static_cast<float>(code) / 255.0F;
      values_.push_back(x * x * x);
    }
    fill_codes();
    fill_tree();
  }
  StateMap view() const { return {values_.data(), codes_.data(), tree_.data()}; }

 private:
  void fill_codes() {
    size_t best = 0;
    for (int64_t step = 0; step < kStateSteps; ++step) {
      const float x = static_cast<float>(step) / (kStateSteps - 1) * 2.0F - 1.0F;
      while (best + 1 < values_.size() &&
             std::fabs(x - values_[best + 1]) < std::fabs(x - values_[best]))
        ++best;
      codes_.push_back(static_cast<uint8_t>(best));
    }
  }
  void fill_tree() {
    for (int level = 0; level < 8; ++level) {
      const int half = 1 << (7 - level);
      for (int i = 0; i < 1 << level; ++i) {
        const auto code = static_cast<uint8_t>(2 * half * i + half);
        const auto first = std::lower_bound(codes_.begin(), codes_.end(), code) - codes_.begin();
        tree_[static_cast<size_t>((level < 7 ? 32 * level : 256) + i)] =
            static_cast<uint16_t>(first);
      }
    }
  }
  std::vector<float> values_;
  std::vector<uint8_t> codes_;
  std::vector<uint16_t> tree_ = std::vector<uint16_t>(kStateTree);
};

/// Blocks of these many values, with gaps between them.
struct Moments {
  explicit Moments(const std::vector<int16_t>& sizes, int64_t shift)
      : numel(Memory::raw(sizes, shift)), begin(Memory::raw(begins(sizes), shift)) {}
  static std::vector<int64_t> begins(const std::vector<int16_t>& sizes) {
    std::vector<int64_t> begin;
    int64_t at = 3;
    for (const int16_t size : sizes) begin.push_back(at), at += size + 2;
    return begin;
  }
  Memory numel, begin;
};

/// All that a step changes: parameters, their copy, codes and factors.
struct State {
  Memory param, copy, m, v, m_absmax, v_absmax;
  StateBlock block(int64_t i) const {
    return {m.as<uint8_t>() + i * kStateBlock, v.as<uint8_t>() + i * kStateBlock,
            m_absmax.as<float>() + i, v_absmax.as<float>() + i};
  }
};
State state_of(Type type, int64_t values, int64_t blocks, int64_t shift) {
  std::vector<float> m_absmax = normal(blocks, 7), v_absmax = normal(blocks, 8);
  for (float& each : m_absmax) each = std::fabs(each);
  for (float& each : v_absmax) each = 3 * std::fabs(each);
  if (blocks > 1) m_absmax[1] = v_absmax[1] = 0;  // at the first step they are
  return {Memory::raw(normal(values, 5), shift),
          Memory::nans(type, values, shift),
          Memory::raw(random_bytes(blocks * kStateBlock, 9), shift),
          Memory::raw(random_bytes(blocks * kStateBlock, 10), shift),
          Memory::raw(m_absmax, shift),
          Memory::raw(v_absmax, shift)};
}

/// Zeros, a whole block of them, NaN and infinity.
std::vector<float> gradients(int64_t values, const std::vector<int64_t>& begin) {
  std::vector<float> grad = normal(values, 6);
  for (size_t i = 0; i < grad.size(); i += 7) grad[i] = 0;
  if (begin.size() > 3) {
    const auto first = grad.begin() + begin[1];
    std::fill(first, grad.begin() + begin[2], 0.0F);
    grad[static_cast<size_t>(begin[2])] = std::nanf("");
    grad[static_cast<size_t>(begin[3])] = std::numeric_limits<float>::infinity();
  }
  return grad;
}

State by_cpu(const State& before, const Memory& grad, const Moments& moments, const StateMap& m_map,
             const StateMap& v_map) {
  State after = before;
  const auto begin = moments.begin.to<int64_t>();
  const auto numel = moments.numel.to<int16_t>();
  for (size_t i = 0; i < begin.size(); ++i) {
    cpu_kernels().adamw_8bit(after.param.as<float>() + begin[i], grad.as<float>() + begin[i],
                             after.block(static_cast<int64_t>(i)), nullptr, numel[i], m_map, v_map,
                             kParams8);
  }
  return after;
}

std::vector<Memory> by_cuda(Type type, const State& before, const Memory& grad,
                            const Moments& moments, const StateMap& m_map, const StateMap& v_map,
                            bool with_copy) {
  const auto count = static_cast<int64_t>(moments.numel.bytes() / sizeof(int16_t));
  return in_every_order([&] {
    State after = before;
    const StateBlocks blocks{after.block(0), moments.begin.as<int64_t>(),
                             moments.numel.as<int16_t>(), count};
    launch_adamw_8bit(type, after.param.as<float>(), grad.as<float>(), blocks,
                      with_copy ? after.copy.data() : nullptr, m_map, v_map, kParams8, nullptr);
    return std::vector<Memory>{after.param,    after.m,        after.v,
                               after.m_absmax, after.v_absmax, after.copy};
  });
}

/// Values between the blocks stay NaN.
std::vector<float> copies(Type type, const std::vector<float>& param, const Moments& moments) {
  std::vector<float> copy(param.size(), std::nanf(""));
  const auto begin = moments.begin.to<int64_t>();
  const auto numel = moments.numel.to<int16_t>();
  for (size_t block = 0; block < begin.size(); ++block)
    for (int64_t i = begin[block]; i < begin[block] + numel[block]; ++i)
      copy[static_cast<size_t>(i)] = param[static_cast<size_t>(i)];
  return rounded(type, copy);
}

void expect_step_of_8bit(Type type, const std::vector<int16_t>& sizes, int64_t shift) {
  static const Map signed_map(true), unsigned_map(false);
  const Moments moments(sizes, shift);
  int64_t values = 3;
  for (const int16_t size : sizes) values += size + 2;
  const auto count = static_cast<int64_t>(sizes.size());
  const State before = state_of(type, values, count, shift);
  const Memory grad = Memory::raw(gradients(values, moments.begin.to<int64_t>()), shift);
  const State cpu = by_cpu(before, grad, moments, signed_map.view(), unsigned_map.view());
  for (const bool with_copy : {true, false}) {
    const auto out =
        by_cuda(type, before, grad, moments, signed_map.view(), unsigned_map.view(), with_copy);
    EXPECT_TRUE(same(Type::kFloat32, out[0], cpu.param.to<float>())) << "parameters";
    EXPECT_TRUE(out[1] == cpu.m) << "codes of the first moment";
    EXPECT_TRUE(out[2] == cpu.v) << "codes of the second moment";
    EXPECT_TRUE(same(Type::kFloat32, out[3], cpu.m_absmax.to<float>()));
    EXPECT_TRUE(same(Type::kFloat32, out[4], cpu.v_absmax.to<float>()));
    if (with_copy)
      EXPECT_TRUE(same(type, out[5], copies(type, out[0].to<float>(), moments)));
    else
      EXPECT_TRUE(out[5] == before.copy);
  }
}

TEST_P(CudaAdamW, StepOfMomentsIn8Bits) {
  const std::vector<std::vector<int16_t>> sizes = {
      {},    {1},   {7},   {8, 9},         {31, 32, 33},
      {100}, {255}, {256}, {256, 256, 13}, {256, 200, 256, 40, 1, 255, 16, 17}};
  for_each("blocks", sizes, [&](const std::vector<int16_t>& of) {
    for_each("shift", kShifts, [&](int64_t shift) { expect_step_of_8bit(type(), of, shift); });
  });
}

/// More blocks than the warps of a launch: these go on to the next ones.
TEST(CudaAdamW8bit, StepOfMoreMomentsThanAGrid) {
  expect_step_of_8bit(Type::kBFloat16, std::vector<int16_t>(4096 * 8 + 9, 2), 0);
}

/// Every step of a map has the code that the table has.
TEST(CudaAdamW8bit, CodesOfStatesAreThoseOfTheTable) {
  for (const bool is_signed : {true, false}) {
    const Map map(is_signed);
    for (int32_t place = 0; place < kStateSteps; ++place)
      ASSERT_EQ(state_code(map.view().tree, place), map.view().codes[place]) << place;
  }
}

// ---- Sums.

TEST(CudaSumOfSquares, IsThatOfFp64) {
  constexpr int64_t kCounts[] = {0,   1,    7,    8,    9,    31,    32,    33,    255,    256,
                                 257, 1000, 4095, 4096, 4097, 65535, 65536, 65537, 200'003};
  for_each("size", kCounts, [&](int64_t n) {
    for_each("shift", kShifts, [&](int64_t shift) {
      const Memory x = Memory::raw(normal(n, 1), shift);
      const auto out = in_every_order([&] {
        std::vector<Memory> made{Memory::untouched<double>((n + kSumChunk - 1) / kSumChunk),
                                 Memory::untouched<double>(1)};
        launch_sum_of_squares(x.as<float>(), n, made[0].as<double>(), made[1].as<double>(),
                              nullptr);
        return made;
      });
      double expected = 0;
      for (int64_t i = 0; i < n; ++i) expected += double{x.as<float>()[i]} * x.as<float>()[i];
      const double total = *out[1].as<double>(), allowed = kSquares * kUnit * expected;
      EXPECT_NEAR(total, expected, allowed);
      EXPECT_NEAR(total, cpu_kernels().sum_of_squares(x.as<float>(), n),
                  allowed + 64 * kUnit * expected);
    });
  });
}

/// Chunks, and the last elements of the last one, at any address: the same to the bit.
TEST(CudaSumOfSquares, IsTheSameAtAnyAddress) {
  constexpr int64_t kCounts[] = {1, 7, 8, 9, 31, 257, 1000, 2055, 4097, 65535, 65541, 140'003};
  for_each("size", kCounts, [&](int64_t n) {
    const std::vector<float> values = normal(n, 3);
    std::vector<std::vector<double>> sums;
    for (const int64_t shift : {0, 1, 2, 3}) {
      const Memory x = Memory::raw(values, shift),
                   partial = Memory::untouched<double>((n + kSumChunk - 1) / kSumChunk),
                   total = Memory::untouched<double>(1);
      launch_sum_of_squares(x.as<float>(), n, partial.as<double>(), total.as<double>(), nullptr);
      sums.push_back(partial.to<double>());
      sums.back().push_back(*total.as<double>());
      EXPECT_EQ(sums.back(), sums.front()) << "shift " << shift;
    }
  });
}

TEST(CudaSumOfSquares, CarriesNan) {
  std::vector<float> values = normal(70'000, 1);
  values[66'000] = std::nanf("");
  const Memory x = Memory::raw(values), partial = Memory::untouched<double>(2),
               total = Memory::raw(std::vector<double>{0});
  launch_sum_of_squares(x.as<float>(), 70'000, partial.as<double>(), total.as<double>(), nullptr);
  EXPECT_TRUE(std::isnan(*total.as<double>()));
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
