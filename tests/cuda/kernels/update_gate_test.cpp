#include "adamw/update_gate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../../support/adamw_params.h"
#include "adamw/adamw_launch.h"
#include "adamw/update_gate_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

/// Numbers of a step: of each rank a norm, losses, and what the gate must not look at.
struct Step {
  int64_t ranks = 1, losses = 1;
  double norm = 0.5, num_terms = 7, max_norm = 1;
  int64_t columns() const { return 1 + losses + 3; }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      all.push_back(norm);
      for (int64_t i = 0; i < losses; ++i) all.push_back(0.25 * static_cast<double>(i + rank));
      all.insert(all.end(), {kNan, kInfinity, 1e300});
    }
    return all;
  }
};

UpdateGate decided_by_cuda(const Step& step, const std::vector<double>& numbers,
                           const UpdateGate& before = {9, 1}) {
  const Memory values = Memory::raw(numbers);
  const auto out = in_every_order([&] {
    std::vector<Memory> gate{Memory::raw(std::vector<UpdateGate>{before})};
    launch_decide_update({values.as<double>(), step.ranks, step.columns(), step.losses,
                          step.num_terms, step.max_norm},
                         gate[0].as<UpdateGate>(), nullptr);
    return gate;
  });
  return *out[0].as<UpdateGate>();
}

TEST(CudaUpdateGate, FactorIsTorchs) {
  for (const double norm : {0.0, 1e-30, 0.3, 0.999999, 1.0, 1.000001, 4.0, 1e30}) {
    for (const double max_norm : {0.0, 0.3, 1.0, 100.0}) {
      const UpdateGate gate = decided_by_cuda({.norm = norm, .max_norm = max_norm},
                                              Step{.norm = norm, .max_norm = max_norm}.numbers());
      const double factor = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
      EXPECT_EQ(gate.grad_scale, static_cast<float>(factor)) << norm << " of " << max_norm;
      EXPECT_EQ(gate.is_open, 1);
    }
  }
}

/// Wherever it is, of any rank; and nothing beyond norms and losses.
TEST(CudaUpdateGate, WhatIsNotFiniteCloses) {
  constexpr int64_t kCounts[] = {1, 2, 3, 300};
  for (const int64_t ranks : kCounts) {
    for (const int64_t losses : kCounts) {
      const Step step{.ranks = ranks, .losses = losses};
      EXPECT_EQ(decided_by_cuda(step, step.numbers()).is_open, 1) << ranks << ", " << losses;
      for (const int64_t rank : {int64_t{0}, ranks / 2, ranks - 1}) {
        for (const int64_t column : {int64_t{0}, int64_t{1}, 1 + losses / 2, losses}) {
          for (const double bad : {kNan, kInfinity, -kInfinity}) {
            std::vector<double> numbers = step.numbers();
            numbers[static_cast<size_t>(rank * step.columns() + column)] = bad;
            EXPECT_EQ(decided_by_cuda(step, numbers).is_open, 0)
                << bad << " at " << rank << ", " << column << " of " << ranks << ", " << losses;
          }
        }
      }
    }
  }
}

TEST(CudaUpdateGate, StaysClosed) {
  const Step step;
  EXPECT_EQ(decided_by_cuda(step, step.numbers(), {1, 0}).is_open, 0);
}

TEST(CudaUpdateGate, NoLabelsCloseIt) {
  const Step step{.num_terms = 0};
  EXPECT_EQ(decided_by_cuda(step, step.numbers()).is_open, 0);
}

// ---- The updates behind it.

constexpr float kFactor = 0.25F;
enum class Gate { kNone, kOpen, kClosed };

/// The kernel with a gate that is open does what it does with the gate's factor and no gate;
/// behind a closed one it writes nothing.
template <typename Update>
void expect_gated(const Update& update) {
  const std::vector<Memory> before = update(Gate::kNone, kFactor, /*runs=*/false);
  const auto run = [&](Gate gate, float scale) {
    return in_every_order([&] { return update(gate, scale, true); });
  };
  const auto plain = run(Gate::kNone, kFactor), open = run(Gate::kOpen, 0.7F),
             closed = run(Gate::kClosed, 0.7F), other = run(Gate::kNone, 0.7F);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(open[i] == plain[i]) << i;
    EXPECT_TRUE(closed[i] == before[i]) << i;
    EXPECT_FALSE(plain[i] == before[i]) << i;
  }
  EXPECT_FALSE(plain[0] == other[0]);
}

SFTRUN_FOR_TYPES(CudaGatedAdamW);

TEST_P(CudaGatedAdamW, Fp32Moments) {
  for_each("shift", kShifts, [&](int64_t shift) {
    constexpr int64_t kValues = 2050;
    const Memory grad = Memory::raw(normal(kValues, 2), shift);
    expect_gated([&](Gate kind, float scale, bool runs) {
      const Memory gate =
          Memory::raw(std::vector<UpdateGate>{{kFactor, kind == Gate::kOpen ? 1 : 0}});
      std::vector<float> squares = normal(kValues, 4);
      for (float& each : squares) each *= each;
      std::vector<Memory> made{Memory::raw(normal(kValues, 1), shift),
                               Memory::raw(normal(kValues, 3), shift), Memory::raw(squares, shift),
                               Memory::nans(type(), kValues, shift)};
      AdamWParams params = kAdamWStep;
      params.grad_scale = scale;
      if (runs)
        launch_adamw(type(), made[0].as<float>(), grad.as<float>(), made[1].as<float>(),
                     made[2].as<float>(), made[3].data(), kValues, params, nullptr,
                     kind == Gate::kNone ? nullptr : gate.as<UpdateGate>());
      return made;
    });
  });
}

TEST_P(CudaGatedAdamW, MomentsIn8Bits) {
  const std::vector<int16_t> numel{256, 255, 3};
  const std::vector<int64_t> begin{0, 256, 512};
  constexpr int64_t kValues = 515, kBlocks = 3;
  std::vector<float> values;
  std::vector<uint8_t> codes;
  for (int code = 0; code < 256; ++code)
    values.push_back((static_cast<float>(code) - 127.5F) / 128);
  for (int64_t step = 0; step < kStateSteps; ++step)
    codes.push_back(static_cast<uint8_t>(step / 256));
  std::vector<uint16_t> tree(kStateTree);
  for (int level = 0; level < 8; ++level)
    for (int i = 0; i < 1 << level; ++i)
      tree[static_cast<size_t>((level < 7 ? 32 * level : 256) + i)] =
          static_cast<uint16_t>(256 * ((2 * i + 1) << (7 - level)));
  const StateMap map{values.data(), codes.data(), tree.data()};
  const Memory grad = Memory::raw(normal(kValues, 2)), numels = Memory::raw(numel),
               begins = Memory::raw(begin);
  expect_gated([&](Gate kind, float scale, bool runs) {
    const Memory gate =
        Memory::raw(std::vector<UpdateGate>{{kFactor, kind == Gate::kOpen ? 1 : 0}});
    std::vector<Memory> made{Memory::raw(normal(kValues, 1)),
                             Memory::raw(random_bytes(kBlocks * kStateBlock, 3)),
                             Memory::raw(random_bytes(kBlocks * kStateBlock, 4)),
                             Memory::raw(std::vector<float>{0.5F, 1, 2}),
                             Memory::raw(std::vector<float>{0.1F, 1, 3}),
                             Memory::nans(type(), kValues)};
    const StateBlocks blocks{
        {made[1].as<uint8_t>(), made[2].as<uint8_t>(), made[3].as<float>(), made[4].as<float>()},
        begins.as<int64_t>(),
        numels.as<int16_t>(),
        kBlocks};
    const AdamW8bitParams params{.beta1 = 0.9F,
                                 .one_minus_beta1 = 0.1F,
                                 .beta2 = 0.999F,
                                 .one_minus_beta2 = 0.001F,
                                 .epsilon = 1e-8F,
                                 .step_size = -3e-3F,
                                 .decay = 0.9995F,
                                 .sqrt_bias_correction2 = 0.0893F,
                                 .grad_scale = scale};
    if (runs)
      launch_adamw_8bit(type(), made[0].as<float>(), grad.as<float>(), blocks, made[5].data(), map,
                        map, params, nullptr,
                        kind == Gate::kNone ? nullptr : gate.as<UpdateGate>());
    return made;
  });
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
