#include <cmath>
#include <numeric>
#include <random>

#include "experts/expert_rows_launch.h"
#include "gated_exact.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

struct Case {
  int64_t tokens, top_k, columns;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.tokens << " tokens of " << c.columns << " columns, in " << c.top_k << " rows each";
}
/// Multiples of 8 are read in words of 16 bytes, 2048 by a block, 256 by a warp.
constexpr Case kCases[] = {{0, 2, 8},  {1, 1, 1},   {3, 2, 7},    {9, 4, 8},     {2, 5, 9},
                           {5, 3, 64}, {1, 8, 264}, {2, 2, 2056}, {17, 1, 2048}, {2, 1, 300}};

SFTRUN_FOR_TYPES(CudaExpertRows);

size_t place(int64_t i) {
  return static_cast<size_t>(i);
}
int64_t rows_of(const Case& c) {
  return c.tokens * c.top_k;
}
/// Which row each slot has.
std::vector<int32_t> some_rows(int64_t n) {
  std::vector<int32_t> rows(place(n));
  std::iota(rows.begin(), rows.end(), 0);
  std::mt19937 random(static_cast<uint32_t>(n));
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random() % i]);
  return rows;
}
void add(Exact& sum, double term) {
  sum.value += term, sum.size += std::fabs(term);
}

// ---- From tokens to rows and back.

void expect_spread(Type type, const Case& c, int64_t x_shift, int64_t y_shift) {
  const Memory x = Memory::of(type, normal(c.tokens * c.columns, 1), x_shift);
  const std::vector<int32_t> rows = some_rows(rows_of(c));
  const Memory of_rows = Memory::raw(rows);
  const auto made = in_every_order([&] {
    std::vector<Memory> y{Memory::nans(type, rows_of(c) * c.columns, y_shift)};
    launch_spread_rows(type, x.data(), y[0].data(),
                       {of_rows.as<int32_t>(), c.tokens, c.top_k, c.columns}, nullptr);
    return y;
  });
  const auto values = floats(type, x);
  std::vector<float> expected(place(rows_of(c) * c.columns));
  for (size_t slot = 0; slot < rows.size(); ++slot) {
    const int64_t token = static_cast<int64_t>(slot) / c.top_k;
    std::copy_n(values.begin() + token * c.columns, c.columns,
                expected.begin() + rows[slot] * c.columns);
  }
  EXPECT_TRUE(same(type, made[0], expected));
}
TEST_P(CudaExpertRows, Spread) {
  for_each("case", kCases, [&](const Case& c) { expect_spread(type(), c, 0, 0); });
  expect_spread(type(), kCases[5], 1, 0);
  expect_spread(type(), kCases[5], 0, 1);
}

/// What is added to the rows, in bits, and where each operand begins.
struct Added {
  bool weights = false, residual = false, beside = false, logits = false;
  int64_t x_shift = 0, residual_shift = 0, beside_shift = 0, y_shift = 0;
};
void expect_sums(Type type, const Case& c, const Added& a) {
  const int64_t n = c.tokens * c.columns;
  const Memory x = Memory::of(type, normal(rows_of(c) * c.columns, 1), a.x_shift),
               weights = Memory::raw(normal(rows_of(c), 2)),
               residual = Memory::of(type, normal(n, 3), a.residual_shift),
               beside = Memory::of(type, normal(n, 4), a.beside_shift),
               logits = Memory::of(type, normal(c.tokens, 5, 2));
  const std::vector<int32_t> rows = some_rows(rows_of(c));
  const Memory of_rows = Memory::raw(rows);
  const auto made = in_every_order([&] {
    std::vector<Memory> y{Memory::nans(type, n, a.y_shift)};
    launch_sum_rows(type,
                    {.x = x.data(),
                     .weights = a.weights ? weights.as<float>() : nullptr,
                     .residual = a.residual ? residual.data() : nullptr,
                     .beside = a.beside ? beside.data() : nullptr,
                     .logits = a.logits ? logits.data() : nullptr,
                     .y = y[0].data()},
                    {of_rows.as<int32_t>(), c.tokens, c.top_k, c.columns}, nullptr);
    return y;
  });
  const auto xs = floats(type, x), residuals = floats(type, residual),
             besides = floats(type, beside), gates = floats(type, logits);
  const auto factors = weights.to<float>();
  std::vector<Exact> expected;
  for (int64_t token = 0; token < c.tokens; ++token) {
    const double share = a.logits ? 1 / (1 + std::exp(-double{gates[place(token)]})) : 1;
    for (int64_t column = 0; column < c.columns; ++column) {
      const size_t at = place(token * c.columns + column);
      Exact sum{0, 0};
      for (int64_t k = 0; k < c.top_k; ++k) {
        const size_t slot = place(token * c.top_k + k);
        add(sum, (a.weights ? factors[slot] : 1.0) * xs[place(rows[slot] * c.columns + column)]);
      }
      if (a.beside) {
        const double argument = a.logits ? 1 + std::fabs(double{gates[place(token)]}) : 1;
        sum.value += share * besides[at], sum.size += argument * share * std::fabs(besides[at]);
      }
      if (a.residual) add(sum, residuals[at]);
      expected.push_back(sum);
    }
  }
  EXPECT_TRUE(close(type, made[0], expected, static_cast<double>(c.top_k) + 6));
}
TEST_P(CudaExpertRows, Sums) {
  for_each("case", kCases, [&](const Case& c) {
    expect_sums(type(), c, {});
    expect_sums(type(), c, {.weights = true, .beside = true, .logits = true});
    expect_sums(type(), c, {.residual = true, .beside = true});
  });
}
TEST_P(CudaExpertRows, SumsAtAnyAddress) {
  const Added all{.weights = true, .residual = true, .beside = true, .logits = true};
  for (int64_t Added::*shift :
       {&Added::x_shift, &Added::residual_shift, &Added::beside_shift, &Added::y_shift}) {
    Added one = all;
    one.*shift = 1;
    expect_sums(type(), kCases[5], one);
  }
}

// ---- Of each expert.

/// How many rows each expert has.
struct Experts {
  std::vector<int32_t> rows;
  int64_t columns;
};
void PrintTo(const Experts& c, std::ostream* out) {
  for (const int32_t rows : c.rows) *out << rows << " ";
  *out << "rows of " << c.columns << " columns";
}
const std::vector<Experts> kExperts = {{{0, 0}, 8},     {{1}, 1},      {{0, 3, 0, 2}, 7},
                                       {{9, 0, 8}, 32}, {{30, 1}, 33}, {{2, 2}, 264}};

std::vector<int32_t> ends_of(const Experts& c) {
  std::vector<int32_t> ends;
  for (const int32_t rows : c.rows) ends.push_back((ends.empty() ? 0 : ends.back()) + rows);
  return ends;
}
/// The expert of each row.
std::vector<int32_t> experts_of(const Experts& c) {
  std::vector<int32_t> experts;
  for (size_t e = 0; e < c.rows.size(); ++e)
    experts.insert(experts.end(), place(c.rows[e]), static_cast<int32_t>(e));
  return experts;
}

void expect_bias(Type type, const Experts& c, int64_t y_shift, int64_t bias_shift) {
  const std::vector<int32_t> experts = experts_of(c);
  const auto rows = static_cast<int64_t>(experts.size());
  const Memory before = Memory::of(type, normal(rows * c.columns, 1), y_shift),
               bias = Memory::of(type, normal(static_cast<int64_t>(c.rows.size()) * c.columns, 2),
                                 bias_shift),
               of_experts = Memory::raw(experts);
  const auto made = in_every_order([&] {
    std::vector<Memory> y{before};
    launch_add_expert_bias(type, y[0].data(), bias.data(), of_experts.as<int32_t>(), rows,
                           c.columns, nullptr);
    return y;
  });
  std::vector<float> expected = floats(type, before);
  const auto biases = floats(type, bias);
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / c.columns,
                  column = static_cast<int64_t>(i) % c.columns;
    expected[i] += biases[place(experts[place(row)] * c.columns + column)];
  }
  EXPECT_TRUE(same(type, made[0], rounded(type, expected)));
}
TEST_P(CudaExpertRows, Biases) {
  for_each("case", kExperts, [&](const Experts& c) { expect_bias(type(), c, 0, 0); });
  expect_bias(type(), kExperts[3], 1, 0);
  expect_bias(type(), kExperts[3], 0, 1);
}

void expect_expert_sums(Type type, const Experts& c, bool weighted) {
  const std::vector<int32_t> experts = experts_of(c), ends = ends_of(c);
  const auto rows = static_cast<int64_t>(experts.size()),
             sums = static_cast<int64_t>(c.rows.size()) * c.columns;
  const std::vector<int32_t> slots = some_rows(rows);
  const Memory x = Memory::of(type, normal(rows * c.columns, 1)),
               weights = Memory::raw(normal(rows, 2)), before = Memory::raw(normal(sums, 3)),
               of_slots = Memory::raw(slots), of_ends = Memory::raw(ends);
  const auto made = in_every_order([&] {
    std::vector<Memory> out{before};
    launch_add_expert_sums(type,
                           {.x = x.data(),
                            .ends = of_ends.as<int32_t>(),
                            .weights = weighted ? weights.as<float>() : nullptr,
                            .slots = of_slots.as<int32_t>(),
                            .out = out[0].as<float>(),
                            .experts = static_cast<int64_t>(c.rows.size()),
                            .columns = c.columns},
                           nullptr);
    return out;
  });
  std::vector<Exact> expected;
  for (const float value : before.to<float>()) expected.push_back({value, std::fabs(value)});
  const auto xs = floats(type, x), factors = weights.to<float>();
  for (size_t i = 0; i < xs.size(); ++i) {
    const size_t row = i / place(c.columns), column = i % place(c.columns);
    add(expected[place(experts[row]) * place(c.columns) + column],
        (weighted ? factors[place(slots[row])] : 1.0) * xs[i]);
  }
  EXPECT_TRUE(close(Type::kFloat32, made[0], expected, static_cast<double>(rows) + 4));
}
TEST_P(CudaExpertRows, SumsOfEachExpert) {
  for_each("case", kExperts, [&](const Experts& c) {
    expect_expert_sums(type(), c, false);
    expect_expert_sums(type(), c, true);
  });
}

/// Products of experts without rows, and the gap behind each row, are NaN.
struct Products {
  int64_t rows, columns, row_stride, shift;
};
void PrintTo(const Products& p, std::ostream* out) {
  *out << p.rows << " by " << p.columns << " in rows of " << p.row_stride << ", shift " << p.shift;
}
constexpr Products kProducts[] = {{1, 1, 1, 0},   {3, 7, 8, 0},   {5, 8, 8, 0},    {4, 16, 24, 0},
                                  {4, 16, 16, 1}, {4, 16, 17, 0}, {9, 264, 264, 0}};

void expect_products(Type type, const Products& p) {
  const Experts c{{0, 3, 0, 1}, p.columns};
  const auto experts = static_cast<int64_t>(c.rows.size());
  const int64_t n = p.rows * p.columns, matrix_stride = (p.rows + 1) * p.row_stride;
  std::vector<float> products(place(experts * matrix_stride), std::nanf(""));
  const std::vector<float> values = normal(experts * n, 1);
  const Memory before = Memory::raw(normal(experts * n, 2)), of_ends = Memory::raw(ends_of(c));
  std::vector<float> expected = before.to<float>();
  const std::vector<float> held = rounded(type, values);
  for (int64_t i = 0; i < experts * n; ++i) {
    const int64_t expert = i / n, row = i % n / p.columns, column = i % p.columns;
    if (c.rows[place(expert)] == 0) continue;
    products[place(expert * matrix_stride + row * p.row_stride + column)] = values[place(i)];
    expected[place(i)] += held[place(i)];
  }
  const Memory of_products = Memory::of(type, products, p.shift);
  const auto made = in_every_order([&] {
    std::vector<Memory> out{before};
    launch_add_expert_products(type,
                               {.products = of_products.data(),
                                .row_stride = p.row_stride,
                                .matrix_stride = matrix_stride,
                                .ends = of_ends.as<int32_t>(),
                                .out = out[0].as<float>(),
                                .experts = experts,
                                .rows = p.rows,
                                .columns = p.columns},
                               nullptr);
    return out;
  });
  EXPECT_TRUE(same(Type::kFloat32, made[0], expected));
}
TEST_P(CudaExpertRows, ProductsOfEachExpert) {
  for_each("case", kProducts, [&](const Products& p) { expect_products(type(), p); });
}

// ---- Gated activations and outputs.

constexpr Gating kGatings[] = {Gating(Activation::kSilu), Gating(Activation::kGeluTanh),
                               Gating(Activation::kClampedSwiglu, 1.702F, 2.0F)};

struct Rows {
  int64_t rows, inner, hidden;  // hidden 0: no bias
};
void PrintTo(const Rows& c, std::ostream* out) {
  *out << c.rows << " rows, inner " << c.inner << ", hidden " << c.hidden;
}
constexpr Rows kRows[] = {{0, 8, 8},   {1, 1, 0},  {3, 7, 5},    {9, 8, 0},   {8, 64, 72},
                          {2, 264, 0}, {5, 40, 7}, {2, 33, 264}, {17, 16, 8}, {1, 1000, 0}};
struct Shifts {
  int64_t dh = 0, gate_up = 0, h = 0, bias = 0, dy = 0;
};
struct GatedInputs {
  Memory dh, gate_up, weights, slots, bias, dy, experts;
};
constexpr int32_t kNumExperts = 3;

GatedInputs gated_inputs(Type type, const Rows& c, const Shifts& shifts) {
  std::vector<int32_t> experts(place(c.rows));
  for (size_t row = 0; row < experts.size(); ++row)
    experts[row] = static_cast<int32_t>(row * kNumExperts / experts.size());
  return {Memory::of(type, normal(c.rows * c.inner, 1), shifts.dh),
          Memory::of(type, normal(c.rows * 2 * c.inner, 2, 2), shifts.gate_up),
          Memory::raw(normal(c.rows, 3)),
          Memory::raw(some_rows(c.rows)),
          Memory::of(type, normal(kNumExperts * c.hidden, 4), shifts.bias),
          Memory::of(type, normal(c.rows * c.hidden, 5), shifts.dy),
          Memory::raw(experts)};
}
/// The weights' gradients, gate and up, weighted h.
std::vector<Memory> gated_backward(Type type, const Gating& gating, const Rows& c,
                                   const GatedInputs& in, const float* weights, int64_t h_shift) {
  return in_every_order([&] {
    std::vector<Memory> made{Memory::untouched<float>(c.rows), in.gate_up,
                             Memory::nans(type, c.rows * c.inner, h_shift)};
    launch_weighted_gated_backward(type, gating,
                                   {.dh = in.dh.data(),
                                    .gate_up = made[1].data(),
                                    .weights = weights,
                                    .slots = in.slots.as<int32_t>(),
                                    .d_weights = made[0].as<float>(),
                                    .weighted_h = c.rows % 2 == 0 ? nullptr : made[2].data(),
                                    .bias = c.hidden == 0 ? nullptr : in.bias.data(),
                                    .dy = in.dy.data(),
                                    .experts = in.experts.as<int32_t>(),
                                    .rows = c.rows,
                                    .inner = c.inner,
                                    .hidden = c.hidden},
                                   nullptr);
    return made;
  });
}

void expect_gated(Type type, const Gating& gating, const Rows& c, const Shifts& shifts) {
  const GatedInputs in = gated_inputs(type, c, shifts);
  const auto made = gated_backward(type, gating, c, in, in.weights.as<float>(), shifts.h);
  const auto dh = floats(type, in.dh), gate_up = floats(type, in.gate_up),
             bias = floats(type, in.bias), dy = floats(type, in.dy),
             weights = in.weights.to<float>();
  const auto slots = in.slots.to<int32_t>(), experts = in.experts.to<int32_t>();
  const double roundings = kGated + 2, of_dot = roundings + static_cast<double>(c.inner) / 16;
  std::vector<Exact> d_weights(place(c.rows)), gradients(gate_up.size()), weighted_h;
  for (int64_t row = 0; row < c.rows; ++row) {
    const auto slot = place(slots[place(row)]);
    Exact& along = d_weights[slot];
    for (int64_t i = 0; i < c.inner; ++i) {
      const size_t gate = place(row * 2 * c.inner + i), up = gate + place(c.inner);
      const double grad = dh[place(row * c.inner + i)];
      const double weight = weights[slot];
      const Element e = element(gating, grad * weight, gate_up[gate], gate_up[up]);
      gradients[gate] = e.gate, gradients[up] = e.up;
      // h is rounded to the type, here and in the kernel perhaps to its two neighbours.
      const double h = rounded(type, {static_cast<float>(e.h.value)})[0],
                   step = 2 * half_step(type, std::fabs(e.h.value));
      along.value += h * grad;
      along.size += (e.h.size + step / (of_dot * kUnit)) * std::fabs(grad);
      weighted_h.push_back(
          {h * weight, (e.h.size + step / (roundings * kUnit)) * std::fabs(weight)});
    }
    for (int64_t i = 0; i < c.hidden; ++i)
      add(along,
          double{bias[place(experts[place(row)] * c.hidden + i)]} * dy[place(row * c.hidden + i)]);
  }
  EXPECT_TRUE(
      close(Type::kFloat32, made[0], d_weights, of_dot + static_cast<double>(c.hidden) / 16));
  EXPECT_TRUE(close(type, made[1], gradients, roundings));
  if (c.rows % 2 == 0) return;
  EXPECT_TRUE(close(type, made[2], weighted_h, roundings));
}
TEST_P(CudaExpertRows, WeightedGated) {
  for_each("case", kRows, [&](const Rows& c) {
    for (const Gating& gating : kGatings) expect_gated(type(), gating, c, {});
  });
}
TEST_P(CudaExpertRows, WeightedGatedAtAnyAddress) {
  constexpr Shifts kOne[] = {{.dh = 1}, {.gate_up = 1}, {.h = 1}, {.bias = 1}, {.dy = 1}};
  for (const Shifts& shifts : kOne) expect_gated(type(), kGatings[0], {3, 16, 24}, shifts);
}

template <typename T>
void cpu_gated_backward(const RowKernels<T>& kernels, const Gating& gating, const Memory& dh,
                        Memory& gate, Memory& up) {
  kernels.gated_backward(gating, dh.as<T>(), gate.as<T>(), up.as<T>(),
                         static_cast<int64_t>(dh.bytes() / sizeof(T)));
}
/// With weights of 1 the gradients are those of the CPU's kernels.
TEST(CudaExpertRowsOnce, WithoutWeightsAsOnTheCpu) {
  const Rows c{7, 40, 0};
  const std::vector<float> ones(place(c.rows), 1);
  for_each("type", kTypesOfCpu, [&](Type type) {
    const GatedInputs in = gated_inputs(type, c, {});
    const auto both = floats(type, in.gate_up);
    for (const Gating& gating : kGatings) {
      std::vector<float> parts[2];
      for (size_t i = 0; i < both.size(); ++i) parts[i / place(c.inner) % 2].push_back(both[i]);
      Memory gate = Memory::of(type, parts[0]), up = Memory::of(type, parts[1]);
      if (type == Type::kFloat32)
        cpu_gated_backward(cpu_kernels().f32, gating, in.dh, gate, up);
      else
        cpu_gated_backward(cpu_kernels().bf16, gating, in.dh, gate, up);
      const auto of_gate = floats(type, gate), of_up = floats(type, up), dh = floats(type, in.dh);
      std::vector<float> cpu(both.size());
      std::vector<Exact> sizes(both.size());
      for (size_t i = 0; i < dh.size(); ++i) {
        const size_t at = i / place(c.inner) * 2 * place(c.inner) + i % place(c.inner);
        const Element e = element(gating, dh[i], parts[0][i], parts[1][i]);
        cpu[at] = of_gate[i], cpu[at + place(c.inner)] = of_up[i];
        sizes[at] = e.gate, sizes[at + place(c.inner)] = e.up;
      }
      const auto made = gated_backward(type, gating, c, in, ones.data(), 0);
      EXPECT_TRUE(close_to_cpu(type, made[1], cpu, sizes, kGated));
    }
  });
}

void expect_gated_output(Type type, const Case& c, int64_t dy_shift, int64_t output_shift,
                         int64_t out_shift) {
  const int64_t n = c.tokens * c.columns;
  const Memory dy = Memory::of(type, normal(n, 1), dy_shift),
               output = Memory::of(type, normal(n, 2), output_shift),
               logits = Memory::of(type, normal(c.tokens, 3, 2));
  const auto made = in_every_order([&] {
    std::vector<Memory> out{Memory::nans(type, n, out_shift), Memory::nans(type, c.tokens)};
    launch_gated_output_backward(type,
                                 {.dy = dy.data(),
                                  .output = output.data(),
                                  .logits = logits.data(),
                                  .d_output = out[0].data(),
                                  .d_logits = out[1].data(),
                                  .tokens = c.tokens,
                                  .columns = c.columns},
                                 nullptr);
    return out;
  });
  const auto grads = floats(type, dy), outputs = floats(type, output), gates = floats(type, logits);
  std::vector<Exact> d_output, d_logits;
  for (int64_t token = 0; token < c.tokens; ++token) {
    const double gate = gates[place(token)], share = 1 / (1 + std::exp(-gate)),
                 argument = 1 + std::fabs(gate);
    Exact along{0, 0};
    for (int64_t i = token * c.columns; i < (token + 1) * c.columns; ++i) {
      d_output.push_back({share * grads[place(i)], argument * share * std::fabs(grads[place(i)])});
      add(along, double{grads[place(i)]} * outputs[place(i)]);
    }
    const double slope = share * (1 - share);
    // 1 - share cancels where share is near 1.
    d_logits.push_back({along.value * slope, along.size * share * argument});
  }
  EXPECT_TRUE(close(type, made[0], d_output, kGated));
  EXPECT_TRUE(close(type, made[1], d_logits, kGated + static_cast<double>(c.columns) / 32));
}
TEST_P(CudaExpertRows, GatedOutputs) {
  for_each("case", kCases, [&](const Case& c) { expect_gated_output(type(), c, 0, 0, 0); });
  expect_gated_output(type(), kCases[5], 1, 0, 0);
  expect_gated_output(type(), kCases[5], 0, 1, 0);
  expect_gated_output(type(), kCases[5], 0, 0, 1);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
