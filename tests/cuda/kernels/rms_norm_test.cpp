#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

struct Shape {
  int64_t rows, hidden;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.rows << " x " << shape.hidden;
}
/// Rows of up to 1024 channels are a warp's, eight of them in a block; multiples of 8 are read in
/// words of 16 bytes.
constexpr Shape kShapes[] = {{0, 8},    {1, 1},    {2, 2},    {3, 7},    {65, 8},   {7, 16},
                             {1, 9},    {2, 31},   {3, 32},   {1, 33},   {8, 64},   {9, 72},
                             {2, 255},  {1, 256},  {2, 257},  {3, 576},  {2, 577},  {1, 1000},
                             {9, 1000}, {1, 1023}, {3, 1024}, {9, 1024}, {2, 1025}, {3, 1032},
                             {2, 2048}, {1, 2056}, {1, 4095}, {1, 4096}, {2, 4097}, {1, 4104}};
constexpr float kEps = 1e-5F, kOffsets[] = {0.0F, 1.0F};

double norm_of(const float* x, int64_t hidden) {
  double sum = 0;
  for (int64_t i = 0; i < hidden; ++i) sum += static_cast<double>(x[i]) * x[i];
  return 1 / std::sqrt(sum / static_cast<double>(hidden) + kEps);
}

struct Forward {
  std::vector<Exact> y, rstd;
};
Forward forward(const std::vector<float>& x, const std::vector<float>& weight, const Shape& shape,
                float offset) {
  Forward result;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const float* of = x.data() + row * shape.hidden;
    const double rstd = norm_of(of, shape.hidden);
    result.rstd.push_back({rstd, rstd});
    for (int64_t i = 0; i < shape.hidden; ++i) {
      const double w = weight[static_cast<size_t>(i)];
      result.y.push_back({of[i] * rstd * (offset + w),
                          std::fabs(of[i] * rstd) * (std::fabs(offset) + std::fabs(w))});
    }
  }
  return result;
}

SFTRUN_FOR_TYPES(CudaRmsNorm);

template <typename T>
Memory cpu_forward(const RowKernels<T>& kernels, Type type, const Memory& x, const Memory& weight,
                   const Shape& shape, float offset) {
  Memory y = Memory::nans(type, shape.rows * shape.hidden);
  std::vector<float> rstd(static_cast<size_t>(shape.rows));
  kernels.rms_norm_forward(x.as<T>(), weight.as<T>(), y.as<T>(), rstd.data(), shape.rows,
                           shape.hidden, kEps, offset);
  return y;
}

/// Of each operand.
struct Shifts {
  int64_t x = 0, weight = 0, y = 0, dy = 0, residual = 0, rstd = 0;
};
constexpr Shifts all_by(int64_t shift) {
  return {shift, shift, shift, shift, shift, shift};
}

void expect_forward(Type type, const Shape& shape, const Shifts& shifts, float offset) {
  const int64_t n = shape.rows * shape.hidden;
  const Memory x = Memory::of(type, normal(n, 1, 2), shifts.x),
               weight = Memory::of(type, normal(shape.hidden, 2), shifts.weight);
  const auto out = in_every_order([&] {
    std::vector<Memory> made{Memory::nans(type, n, shifts.y),
                             Memory::nans(Type::kFloat32, shape.rows, shifts.rstd)};
    launch_rms_norm_forward(type, x.data(), weight.data(), made[0].data(), made[1].as<float>(),
                            shape.rows, shape.hidden, kEps, offset, nullptr);
    return made;
  });
  const Forward expected = forward(floats(type, x), floats(type, weight), shape, offset);
  const double roundings = of_norm(shape.hidden);
  EXPECT_TRUE(close(type, out[0], expected.y, roundings));
  EXPECT_TRUE(close(Type::kFloat32, out[1], expected.rstd, roundings));
  if (type == Type::kFloat16) return;
  const Memory cpu = type == Type::kFloat32
                         ? cpu_forward(cpu_kernels().f32, type, x, weight, shape, offset)
                         : cpu_forward(cpu_kernels().bf16, type, x, weight, shape, offset);
  EXPECT_TRUE(close_to_cpu(type, out[0], floats(type, cpu), expected.y, roundings));
}

TEST_P(CudaRmsNorm, Forward) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("shift", kShifts, [&](int64_t shift) {
      for (const float offset : kOffsets) expect_forward(type(), shape, all_by(shift), offset);
    });
  });
}

/// Of a row whose sum of squares has no number, nothing is one; the others are as before.
void expect_nan_in_its_row(Type type) {
  const Shape shape{3, 100};
  std::vector<float> values = normal(300, 1);
  values[150] = std::nanf("");
  const Memory x = Memory::of(type, values), weight = Memory::of(type, normal(100, 2));
  const Memory y = Memory::nans(type, 300), rstd = Memory::nans(Type::kFloat32, 3);
  launch_rms_norm_forward(type, x.data(), weight.data(), y.data(), rstd.as<float>(), 3, 100, kEps,
                          0, nullptr);
  const Forward expected = forward(floats(type, x), floats(type, weight), shape, 0);
  EXPECT_TRUE(close(type, y, expected.y, of_norm(100)));
  EXPECT_TRUE(std::isnan(rstd.as<float>()[1]));
}
TEST(CudaRmsNormOnce, NanStaysInItsRow) {
  for_each("type", kTypes, expect_nan_in_its_row);
}

struct Backward {
  Memory dy, x, weight, rstd, residual;
};

std::vector<Exact> backward(Type type, const Backward& in, const Shape& shape, float offset,
                            bool with_residual) {
  const auto dy = floats(type, in.dy), x = floats(type, in.x), weight = floats(type, in.weight),
             residual = floats(type, in.residual);
  const auto* rstd = in.rstd.as<float>();
  std::vector<Exact> dx;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const auto at = [&](int64_t i) { return static_cast<size_t>(row * shape.hidden + i); };
    const auto w = [&](int64_t i) { return offset + double{weight[static_cast<size_t>(i)]}; };
    double dot = 0, dot_size = 0;
    for (int64_t i = 0; i < shape.hidden; ++i) {
      dot += dy[at(i)] * w(i) * x[at(i)];
      dot_size += std::fabs(dy[at(i)] * w(i) * x[at(i)]);
    }
    const double r = rstd[row], of_dot = r * r / static_cast<double>(shape.hidden);
    for (int64_t i = 0; i < shape.hidden; ++i) {
      const double beside = with_residual ? residual[at(i)] : 0;
      const double w_size = std::fabs(offset) + std::fabs(weight[static_cast<size_t>(i)]);
      dx.push_back({beside + r * (dy[at(i)] * w(i) - x[at(i)] * dot * of_dot),
                    std::fabs(beside) + r * (std::fabs(dy[at(i)]) * w_size +
                                             std::fabs(x[at(i)]) * dot_size * of_dot)});
    }
  }
  return dx;
}

template <typename T>
Memory cpu_backward(const RowKernels<T>& kernels, Type type, const Backward& in, const Shape& shape,
                    float offset, bool with_residual) {
  Memory dx = Memory::nans(type, shape.rows * shape.hidden);
  kernels.rms_norm_backward(in.dy.as<T>(), in.x.as<T>(), in.weight.as<T>(), in.rstd.as<float>(),
                            with_residual ? in.residual.as<T>() : nullptr, dx.as<T>(), shape.rows,
                            shape.hidden, offset);
  return dx;
}

void expect_backward(Type type, const Shape& shape, const Shifts& shifts, float offset,
                     bool with_residual) {
  const int64_t n = shape.rows * shape.hidden;
  std::vector<float> rstd = normal(shape.rows, 5);
  for (float& each : rstd) each = std::fabs(each) + 0.1F;
  const Backward in{
      Memory::of(type, normal(n, 1), shifts.dy), Memory::of(type, normal(n, 2, 2), shifts.x),
      Memory::of(type, normal(shape.hidden, 3), shifts.weight), Memory::raw(rstd, shifts.rstd),
      Memory::of(type, normal(n, 4), shifts.residual)};
  const auto out = in_every_order([&] {
    std::vector<Memory> made{Memory::nans(type, n, shifts.y)};
    launch_rms_norm_backward(type, in.dy.data(), in.x.data(), in.weight.data(), in.rstd.as<float>(),
                             with_residual ? in.residual.data() : nullptr, made[0].data(),
                             shape.rows, shape.hidden, offset, nullptr);
    return made;
  });
  const std::vector<Exact> expected = backward(type, in, shape, offset, with_residual);
  const double roundings = of_norm(shape.hidden);
  EXPECT_TRUE(close(type, out[0], expected, roundings));
  if (type == Type::kFloat16) return;
  const Memory cpu = type == Type::kFloat32
                         ? cpu_backward(cpu_kernels().f32, type, in, shape, offset, with_residual)
                         : cpu_backward(cpu_kernels().bf16, type, in, shape, offset, with_residual);
  EXPECT_TRUE(close_to_cpu(type, out[0], floats(type, cpu), expected, roundings));
}

TEST_P(CudaRmsNorm, Backward) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("shift", kShifts, [&](int64_t shift) {
      expect_backward(type(), shape, all_by(shift), 0, true);
      expect_backward(type(), shape, all_by(shift), 1, false);
    });
  });
}

/// Whichever operand is not aligned, words of 16 bytes are read only of what is.
TEST_P(CudaRmsNorm, EachAtAnyAddress) {
  constexpr Shifts kOne[] = {{.x = 1},  {.weight = 1},   {.y = 1},
                             {.dy = 1}, {.residual = 1}, {.rstd = 1}};
  for (const Shifts& shifts : kOne) {
    for (const Shape& shape : {Shape{3, 64}, Shape{2, 1032}}) {
      expect_forward(type(), shape, shifts, 1);
      expect_backward(type(), shape, shifts, 1, true);
    }
  }
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
