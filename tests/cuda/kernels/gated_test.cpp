#include <limits>

#include "gated/gated_launch.h"
#include "gated_exact.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

/// Multiples of 8 are read in words of 16 bytes, 2048 by a block.
constexpr int64_t kSizes[] = {0,   1,   7,    8,    9,    16,   31,   32,   33,  255,
                              256, 257, 1000, 2048, 2056, 4095, 4096, 4097, 4104};
constexpr Gating kGatings[] = {Gating(Activation::kSilu), Gating(Activation::kGeluTanh),
                               Gating(Activation::kClampedSwiglu, 1.702F, 2.0F)};

SFTRUN_FOR_TYPES(CudaGated);

struct Inputs {
  Memory dh, gate, up;
};
struct Expected {
  std::vector<Exact> h, gate, up;
};
Expected expected_of(Type type, const Gating& gating, const Inputs& in) {
  const auto dh = floats(type, in.dh), gate = floats(type, in.gate), up = floats(type, in.up);
  Expected all;
  for (size_t i = 0; i < dh.size(); ++i) {
    const Element e = element(gating, dh[i], gate[i], up[i]);
    all.h.push_back(e.h), all.gate.push_back(e.gate), all.up.push_back(e.up);
  }
  return all;
}

constexpr GatedLeaves kBoth[] = {GatedLeaves::kGradient, GatedLeaves::kActivation};

/// h, then the gradients of gate and up. Those are the same whatever is left in dh, which is dh to
/// the bit, or h to the bit.
std::vector<Memory> by_cuda(Type type, const Gating& gating, const Inputs& in, int64_t n,
                            int64_t shift) {
  const GatedShape shape{1, n, n, n};
  std::vector<Memory> all = in_every_order([&] {
    std::vector<Memory> made{Memory::nans(type, n, shift)};
    launch_gated_forward(type, gating, in.gate.data(), in.up.data(), made[0].data(), shape,
                         nullptr);
    for (const GatedLeaves leaves : kBoth) {
      for (const Memory* each : {&in.gate, &in.up, &in.dh}) made.push_back(*each);
      const Memory *dh = &made.back(), *up = dh - 1, *gate = dh - 2;
      launch_gated_backward(type, gating, dh->data(), gate->data(), up->data(), shape, leaves,
                            nullptr);
    }
    return made;
  });
  EXPECT_TRUE(all[3] == in.dh) << "dh has changed";
  EXPECT_TRUE(all[4] == all[1] && all[5] == all[2]) << "other gradients where h is left";
  EXPECT_TRUE(all[6] == all[0]) << "what is left is not h";
  while (all.size() > 3) all.pop_back();
  return all;
}
template <typename T>
std::vector<Memory> by_cpu(const RowKernels<T>& kernels, Type type, const Gating& gating,
                           const Inputs& in, int64_t n) {
  std::vector<Memory> made{Memory::nans(type, n), in.gate, in.up};
  kernels.gated_forward(gating, in.gate.as<T>(), in.up.as<T>(), made[0].as<T>(), n);
  kernels.gated_backward(gating, in.dh.as<T>(), made[1].as<T>(), made[2].as<T>(), n);
  return made;
}
std::vector<Memory> by_cpu(Type type, const Gating& gating, const Inputs& in, int64_t n) {
  if (type == Type::kFloat32) return by_cpu(cpu_kernels().f32, type, gating, in, n);
  return by_cpu(cpu_kernels().bf16, type, gating, in, n);
}

/// Of each operand.
struct Shifts {
  int64_t dh = 0, gate = 0, up = 0, h = 0;
};

void expect_gated(Type type, const Gating& gating, int64_t n, const Shifts& shifts) {
  const Inputs in{Memory::of(type, normal(n, 1), shifts.dh),
                  Memory::of(type, normal(n, 2, 3), shifts.gate),
                  Memory::of(type, normal(n, 3, 2), shifts.up)};
  const auto out = by_cuda(type, gating, in, n, shifts.h);
  const Expected expected = expected_of(type, gating, in);
  const std::vector<Exact>* each[] = {&expected.h, &expected.gate, &expected.up};
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(type, out[i], *each[i], kGated)) << i;
  if (type == Type::kFloat16) return;
  const auto cpu = by_cpu(type, gating, in, n);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(close_to_cpu(type, out[i], floats(type, cpu[i]), *each[i], kGated)) << i;
}

TEST_P(CudaGated, ForwardAndBackward) {
  for_each("size", kSizes, [&](int64_t n) {
    for_each("shift", kShifts, [&](int64_t shift) {
      for (const Gating& gating : kGatings)
        expect_gated(type(), gating, n, {shift, shift, shift, shift});
    });
  });
}

/// In columns between and behind gate and up.
constexpr float kUntouched = 7;

/// Rows of `columns` of gate, `gap` of no one's, `columns` of up and `gap` again.
struct Joint {
  int64_t rows, columns, gap;
  int64_t up() const { return columns + gap; }
  int64_t stride() const { return 2 * up(); }
};
Memory joint_of(Type type, const Joint& joint, const std::vector<float>& gate,
                const std::vector<float>& up) {
  std::vector<float> both;
  for (int64_t row = 0; row < joint.rows; ++row) {
    for (const std::vector<float>* of : {&gate, &up}) {
      const auto begin = of->begin() + row * joint.columns;
      both.insert(both.end(), begin, begin + joint.columns);
      both.insert(both.end(), static_cast<size_t>(joint.gap), kUntouched);
    }
  }
  return Memory::of(type, both);
}

/// h's rows with `gap` of no one's behind each.
Memory with_room(Type type, const Joint& joint, const std::vector<float>& h, int64_t gap) {
  std::vector<float> all;
  for (int64_t row = 0; row < joint.rows; ++row) {
    const auto begin = h.begin() + row * joint.columns;
    all.insert(all.end(), begin, begin + joint.columns);
    all.insert(all.end(), static_cast<size_t>(gap), kUntouched);
  }
  return Memory::of(type, all);
}

/// gate and up side by side in the rows of one matrix give the same bits as apart; dh's rows lie
/// one behind another, h's with `gap_of_h` elements between them.
void expect_same_side_by_side(Type type, const Joint& joint, const Gating& gating,
                              GatedLeaves leaves, int64_t gap_of_h = 0) {
  const int64_t n = joint.rows * joint.columns;
  const Inputs apart{Memory::of(type, normal(n, 3)), Memory::of(type, normal(n, 1)),
                     Memory::of(type, normal(n, 2))};
  const Memory before = joint_of(type, joint, floats(type, apart.gate), floats(type, apart.up));
  const GatedShape backward{joint.rows, joint.columns, joint.stride(), joint.columns};
  GatedShape forward = backward;
  forward.h_stride += gap_of_h;
  const std::vector<float> no_numbers(static_cast<size_t>(n), std::nanf(""));
  const auto found = in_every_order([&] {
    std::vector<Memory> made{with_room(type, joint, no_numbers, gap_of_h), apart.dh, before};
    char* gate = made[2].as<char>();
    char* up = gate + static_cast<size_t>(joint.up()) * size_of(type);
    launch_gated_forward(type, gating, gate, up, made[0].data(), forward, nullptr);
    EXPECT_TRUE(made[2] == before);
    launch_gated_backward(type, gating, made[1].data(), gate, up, backward, leaves, nullptr);
    return made;
  });
  const auto expected = by_cuda(type, gating, apart, n, 0);
  EXPECT_TRUE(found[0] == with_room(type, joint, floats(type, expected[0]), gap_of_h));
  EXPECT_TRUE(found[1] == (leaves == GatedLeaves::kActivation ? expected[0] : apart.dh));
  EXPECT_TRUE(found[2] ==
              joint_of(type, joint, floats(type, expected[1]), floats(type, expected[2])));
}
TEST_P(CudaGated, PartsOfOneMatrix) {
  for_each("columns", std::initializer_list<int64_t>{1, 7, 8, 64, 1000}, [&](int64_t columns) {
    for_each("rows", std::initializer_list<int64_t>{1, 3, 33}, [&](int64_t rows) {
      for (const int64_t gap : {0, 1, 4, 8, 16})
        for (const GatedLeaves leaves : kBoth)
          expect_same_side_by_side(type(), {rows, columns, gap}, kGatings[0], leaves);
    });
  });
  for (const Gating& gating : kGatings)
    for (const int64_t gap : {0, 8})
      expect_same_side_by_side(type(), {3, 64, gap}, gating, GatedLeaves::kActivation);
}

/// Room behind h's rows, after which they begin at multiples of 16 bytes in every type, in fp32
/// alone, or in none; of gate and up side by side.
TEST_P(CudaGated, RoomBehindRows) {
  for_each("columns", std::initializer_list<int64_t>{1, 7, 8, 64, 1000}, [&](int64_t columns) {
    for (const int64_t gap : {0, 1, 8})
      for (const int64_t gap_of_h : {1, 4, 8, 16, 48})
        expect_same_side_by_side(type(), {3, columns, gap}, kGatings[0], GatedLeaves::kActivation,
                                 gap_of_h);
  });
  for (const Gating& gating : kGatings)
    expect_same_side_by_side(type(), {33, 64, 8}, gating, GatedLeaves::kGradient, 16);
}

/// The same of gate and up whose rows lie one behind another.
TEST_P(CudaGated, RoomBehindRowsOfDenseGates) {
  for (const int64_t columns : {7, 64}) {
    for (const int64_t gap : {1, 8}) {
      const Joint joint{5, columns, 0};
      const int64_t n = joint.rows * columns;
      const Inputs in{Memory::of(type(), normal(n, 3)), Memory::of(type(), normal(n, 1)),
                      Memory::of(type(), normal(n, 2))};
      const std::vector<float> no_numbers(static_cast<size_t>(n), std::nanf(""));
      const auto found = in_every_order([&] {
        std::vector<Memory> made{with_room(type(), joint, no_numbers, gap)};
        launch_gated_forward(type(), kGatings[0], in.gate.data(), in.up.data(), made[0].data(),
                             {joint.rows, columns, columns, columns + gap}, nullptr);
        return made;
      });
      const Memory expected = by_cuda(type(), kGatings[0], in, n, 0)[0];
      EXPECT_TRUE(found[0] == with_room(type(), joint, floats(type(), expected), gap)) << columns;
    }
  }
}

/// Nothing is read or written where there are no rows, or no columns.
TEST_P(CudaGated, OfNothing) {
  for (const GatedShape& shape : {GatedShape{0, 8, 16, 8}, GatedShape{3, 0, 8, 0}}) {
    launch_gated_forward(type(), kGatings[0], nullptr, nullptr, nullptr, shape, nullptr);
    for (const GatedLeaves leaves : kBoth)
      launch_gated_backward(type(), kGatings[0], nullptr, nullptr, nullptr, shape, leaves, nullptr);
  }
}

/// Whichever operand is not aligned, words of 16 bytes are read only of what is.
TEST_P(CudaGated, EachAtAnyAddress) {
  constexpr Shifts kOne[] = {{.dh = 1}, {.gate = 1}, {.up = 1}, {.h = 1}};
  for (const Shifts& shifts : kOne)
    for (const Gating& gating : kGatings) expect_gated(type(), gating, 64, shifts);
}

/// No numbers stay none, as on a CPU, and large gates do not become any.
void expect_no_numbers(Type type, int64_t n) {
  const float nan = std::nanf("");
  std::vector<float> gate = {nan, 1, 1, 80, -80, 1e4F, 7, -7, 0},
                     up = {1, nan, 1, 1, 1, -1e4F, nan, 2, -0.0F},
                     dh = {1, 1, nan, 1, 1, 1, 1, nan, 1};
  for (std::vector<float>* of : {&gate, &up, &dh}) of->resize(static_cast<size_t>(n), 1);
  const Inputs in{Memory::of(type, dh), Memory::of(type, gate), Memory::of(type, up)};
  for (const Gating& gating : kGatings) {
    const auto out = by_cuda(type, gating, in, n, 0), cpu = by_cpu(type, gating, in, n);
    for (size_t i = 0; i < 3; ++i) {
      std::vector<Exact> sizes;
      for (const float value : floats(type, cpu[i])) sizes.push_back({value, 100});
      EXPECT_TRUE(close_to_cpu(type, out[i], floats(type, cpu[i]), sizes, kGated)) << i;
    }
  }
}

TEST(CudaGatedOnce, NanAndLargeGates) {
  for_each("type", kTypesOfCpu, [](Type type) {
    expect_no_numbers(type, 9);
    expect_no_numbers(type, 16);
  });
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
