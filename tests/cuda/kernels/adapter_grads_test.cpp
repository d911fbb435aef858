#include <cmath>
#include <limits>

#include "adapter_grads/adapter_grads_launch.h"
#include "rms_norm/rms_norm_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

SFTRUN_FOR_TYPES(CudaAdapterGrads);

/// Of the two matrices: A is [rank, columns], B is [columns, rank].
enum class Out { kA, kB };
/// Elements behind an address aligned to 16 bytes.
struct Shifts {
  int64_t wide, thin, out, rstd = 0, weight = 0;
};
/// The wide side times rstd of each token and offset + weight of each column.
struct OfNorm {
  bool is_there = false;
  float offset = 0;
};
constexpr OfNorm kPlainNorm{true, 0}, kOffsetNorm{true, 1};
struct Product {
  int64_t columns, rank;
  Out out = Out::kB;
  int64_t wide_gap = 0, thin_gap = 0;  ///< elements between rows
  float scale = 1;
  Shifts shifts = {0, 0, 0};
  OfNorm norm = {};

  int64_t wide_stride() const { return columns + wide_gap; }
  int64_t thin_stride() const { return rank + thin_gap; }
  int64_t wide_step() const { return out == Out::kB ? rank : 1; }
  int64_t rank_step() const { return out == Out::kB ? 1 : columns; }
};
using Products = std::vector<Product>;
void PrintTo(const Product& product, std::ostream* out) {
  *out << product.columns << " (+ " << product.wide_gap << ") columns, rank " << product.rank
       << " (+ " << product.thin_gap << ") of " << (product.out == Out::kA ? "A" : "B")
       << ", scale " << product.scale << ", shifted by " << product.shifts.wide << ", "
       << product.shifts.thin << ", " << product.shifts.out << ", " << product.shifts.rstd << ", "
       << product.shifts.weight;
  if (product.norm.is_there) *out << ", of a norm with offset " << product.norm.offset;
}

struct Operands {
  Memory wide, thin, before, rstd, weight;
};

/// From 1/20 to some: what rms_norm divides by is of any size.
std::vector<float> factors_of(int64_t tokens, uint64_t seed) {
  std::vector<float> rstd = normal(tokens, seed);
  for (float& each : rstd) each = std::fabs(each) + 0.05F;
  return rstd;
}
std::vector<Operands> operands_of(Type type, const Products& products, int64_t tokens) {
  std::vector<Operands> all;
  for (const Product& each : products) {
    const auto seed = static_cast<uint64_t>(3 * all.size());
    all.push_back({Memory::of(type, rows_with_gaps(tokens, each.columns, each.wide_gap, seed + 1),
                              each.shifts.wide),
                   Memory::of(type, rows_with_gaps(tokens, each.rank, each.thin_gap, seed + 2),
                              each.shifts.thin),
                   Memory::raw(normal(each.columns * each.rank, seed + 3), each.shifts.out),
                   Memory::raw(factors_of(tokens, seed + 101), each.shifts.rstd),
                   Memory::of(type, normal(each.columns, seed + 102), each.shifts.weight)});
  }
  return all;
}

/// Of fp32, beside those of the type.
double roundings_of(const Product& product, int64_t tokens) {
  return static_cast<double>(tokens) + (product.norm.is_there ? 6 : 2);
}

/// A token's share of a row of the thin side, and how far it may be off, once.
struct Thin {
  double value, off = 0;
};
/// Where there is a norm, the kernel rounds rstd times the thin side to the type.
Thin thin_of(Type type, const Product& product, const Operands& in, int64_t token, float thin) {
  if (!product.norm.is_there) return {thin};
  const double value = double{thin} * in.rstd.as<float>()[token];
  return {value, type == Type::kFloat32 ? 0 : half_step(type, value)};
}
/// What the norm multiplies a column by, and how large its terms are.
Exact gain_of(const Product& product, float weight) {
  if (!product.norm.is_there) return {1, 1};
  const double offset = product.norm.offset;
  return {offset + weight, std::fabs(offset) + std::fabs(weight)};
}

/// On top of what is there.
std::vector<Exact> expected_of(Type type, const Product& product, const Operands& in,
                               int64_t tokens) {
  const auto wide = floats(type, in.wide), thin = floats(type, in.thin),
             weight = floats(type, in.weight);
  const double of_a_rounding = roundings_of(product, tokens) * kUnit;
  std::vector<Exact> out;
  for (const float value : in.before.to<float>()) out.push_back({value, std::fabs(value)});
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t column = 0; column < product.columns; ++column) {
      const Exact gain = gain_of(product, weight[static_cast<size_t>(column)]);
      const double times =
          double{product.scale} * wide[static_cast<size_t>(token * product.wide_stride() + column)];
      for (int64_t rank = 0; rank < product.rank; ++rank) {
        const Thin other = thin_of(type, product, in, token,
                                   thin[static_cast<size_t>(token * product.thin_stride() + rank)]);
        Exact& sum =
            out[static_cast<size_t>(column * product.wide_step() + rank * product.rank_step())];
        sum.value += times * gain.value * other.value;
        sum.size +=
            std::fabs(times) * gain.size * (std::fabs(other.value) + other.off / of_a_rounding);
      }
    }
  }
  return out;
}

AdapterGrad grad_of(const Product& product, const Operands& in, const Memory& made) {
  return {.wide = in.wide.data(),
          .thin = in.thin.data(),
          .rstd = product.norm.is_there ? in.rstd.as<float>() : nullptr,
          .weight = product.norm.is_there ? in.weight.data() : nullptr,
          .offset = product.norm.offset,
          .wide_stride = product.wide_stride(),
          .wide_columns = product.columns,
          .thin_stride = product.thin_stride(),
          .rank = product.rank,
          .parts = 1,
          .part = {{.out = made.as<float>(),
                    .rank = product.rank,
                    .wide_step = product.wide_step(),
                    .rank_step = product.rank_step(),
                    .scale = product.scale}}};
}

/// What is beyond `count` ends the test where it is read.
AdapterGrads grads_of(const Products& products, const std::vector<Operands>& in,
                      const std::vector<Memory>& made, int64_t tokens) {
  AdapterGrads grads{};
  for (AdapterGrad& each : grads.products)
    each = {.wide_stride = 256,
            .wide_columns = 256,
            .thin_stride = 256,
            .rank = 256,
            .parts = 1,
            .part = {{.rank = 256, .wide_step = 256, .rank_step = 1, .scale = 1}}};
  grads.count = static_cast<int>(products.size());
  grads.tokens = grads.part_tokens = tokens;
  for (size_t i = 0; i < products.size(); ++i)
    grads.products[i] = grad_of(products[i], in[i], made[i]);
  return grads;
}

/// With the tokens in parts of `part_tokens`, 0: not divided.
void launch_divided(Type type, AdapterGrads grads, int64_t part_tokens) {
  if (part_tokens == 0) return launch_adapter_grads(type, grads, nullptr);
  grads.part_tokens = part_tokens;
  const AdapterGradWork work = work_of(type, grads);
  const Memory sums = Memory::nans(Type::kFloat32, work.sums),
               arrivals = Memory::raw(std::vector<unsigned>(static_cast<size_t>(work.tiles), 0));
  grads.partial_sums = sums.as<float>();
  grads.arrivals = arrivals.as<unsigned>();
  launch_adapter_grads(type, grads, nullptr);
  for (const unsigned each : arrivals.to<unsigned>()) EXPECT_EQ(each, 0);
}

/// The outputs, each compared with its product in fp64.
std::vector<Memory> expect_sums(Type type, const Products& products,
                                const std::vector<Operands>& in, int64_t tokens,
                                int64_t part_tokens = 0) {
  const std::vector<Operands> before = in;
  std::vector<Memory> out = in_every_order([&] {
    std::vector<Memory> made;
    made.reserve(in.size());
    for (const Operands& each : in) made.push_back(each.before);
    launch_divided(type, grads_of(products, in, made, tokens), part_tokens);
    return made;
  });
  for (size_t i = 0; i < products.size(); ++i) {
    SCOPED_TRACE(testing::Message()
                 << "product " << i << " of " << products.size() << ", " << tokens
                 << " tokens: " << testing::PrintToString(products[i]));
    EXPECT_TRUE(close(Type::kFloat32, out[i], expected_of(type, products[i], in[i], tokens),
                      roundings_of(products[i], tokens)));
    EXPECT_TRUE(in[i].wide == before[i].wide && in[i].thin == before[i].thin);
    EXPECT_TRUE(in[i].rstd == before[i].rstd && in[i].weight == before[i].weight);
  }
  return out;
}
std::vector<Memory> expect_sums(Type type, const Products& products, int64_t tokens) {
  return expect_sums(type, products, operands_of(type, products, tokens), tokens);
}

constexpr int64_t kTokens[] = {0, 1, 15, 63, 64, 65, 130};
constexpr int64_t kColumns[] = {1, 7, 8, 63, 64, 65, 200};
constexpr int64_t kRanks[] = {1, 3, 4, 8, 15, 16, 17, 32, 64, 80};
constexpr float kScales[] = {1, 0.5F, -2};

/// Every rank and every number of columns meet each other, and each number of tokens but 0.
TEST_P(CudaAdapterGrads, OfEachShape) {
  for (size_t rank = 0; rank < std::size(kRanks); ++rank) {
    for (size_t columns = 0; columns < std::size(kColumns); ++columns) {
      // Half of them: the code is bf16's, and tensor cores take their time here.
      if (type() == Type::kFloat16 && (rank + columns / 2) % 2 != 0) continue;
      const size_t sum = rank + columns;
      expect_sums(type(),
                  {{.columns = kColumns[columns],
                    .rank = kRanks[rank],
                    .out = (columns + rank / 2) % 2 == 0 ? Out::kA : Out::kB,
                    .scale = kScales[(sum + rank) % std::size(kScales)]}},
                  kTokens[1 + sum % (std::size(kTokens) - 1)]);
      if (HasFailure()) return;
    }
  }
}

TEST_P(CudaAdapterGrads, OfAnyNumberOfTokens) {
  for (const int64_t tokens : kTokens) {
    expect_sums(type(), {{8, 16, Out::kA}, {64, 8, Out::kB, 0, 0, -2}}, tokens);
    expect_sums(type(), {{65, 3, Out::kA, 0, 0, 0.5F}, {9, 15, Out::kB}}, tokens);
    if (HasFailure()) return;
  }
}

/// Of which each row begins and ends at 16 bytes, and of which some do not.
const Products kEven = {
    {64, 16, Out::kA, 0, 0, 0.5F}, {8, 8, Out::kB, 8, 8, -2},  {72, 32, Out::kB, 0, 16},
    {16, 8, Out::kA, 16, 0},       {136, 8, Out::kA},          {8, 24, Out::kB, 0, 0, 0.5F},
    {64, 8, Out::kB, 8, 0},        {40, 16, Out::kA, 0, 0, -2}};
const Products kMixed = {{8, 8, Out::kB, 0, 0, -2}, {65, 4, Out::kA},
                         {1, 17, Out::kB},          {66, 3, Out::kB, 2, 0, 0.5F},
                         {64, 16, Out::kA, 8, 8},   {63, 1, Out::kA, 0, 7, -2},
                         {7, 33, Out::kB},          {64, 15, Out::kA}};

TEST_P(CudaAdapterGrads, OneToEightAtOnce) {
  for (int count = 1; count <= kMaxAdapterGrads; ++count) {
    const Products& all = count % 2 == 0 ? kEven : kMixed;
    expect_sums(type(), {all.begin(), all.begin() + count}, 15);
    if (HasFailure()) return;
  }
}

/// Sums are the same to the bit, whatever else the launch has.
TEST_P(CudaAdapterGrads, EachAsIfAlone) {
  constexpr int64_t kOf = 65;
  const std::vector<Operands> in = operands_of(type(), kMixed, kOf);
  const std::vector<Memory> out = expect_sums(type(), kMixed, in, kOf);
  for (const size_t i : {0U, 4U, 6U})
    EXPECT_TRUE(expect_sums(type(), {kMixed[i]}, {in[i]}, kOf)[0] == out[i]) << "product " << i;
}

struct Gaps {
  int64_t wide, thin;
};
void PrintTo(const Gaps& gaps, std::ostream* out) {
  *out << gaps.wide << " and " << gaps.thin;
}
constexpr Gaps kGaps[] = {{8, 0},  {0, 8}, {8, 24}, {4, 0}, {0, 4}, {4, 4},
                          {56, 8}, {1, 0}, {0, 1},  {3, 5}, {8, 2}, {12, 8}};

TEST_P(CudaAdapterGrads, RowsFurtherApartThanLong) {
  for_each("gaps", kGaps, [&](const Gaps& gaps) {
    expect_sums(type(),
                {{16, 8, Out::kA, gaps.wide, gaps.thin}, {8, 16, Out::kB, gaps.wide, gaps.thin}},
                17);
    expect_sums(type(), {{7, 3, Out::kB, gaps.wide, gaps.thin}}, 17);
  });
  // Rows begin at 16 bytes, but do not end there.
  expect_sums(type(), {{7, 8, Out::kA, 1, 0}, {68, 16, Out::kB, 4, 0}}, 17);
  expect_sums(type(), {{8, 7, Out::kA, 0, 1}, {16, 20, Out::kB, 0, 4}}, 17);
}

void PrintTo(const Shifts& shifts, std::ostream* out) {
  *out << shifts.wide << ", " << shifts.thin << ", " << shifts.out;
}
constexpr Shifts kAnyShifts[] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 1},
                                 {8, 8, 8}, {4, 0, 0}, {0, 4, 0}, {2, 6, 3}};

/// Whichever is not aligned: the same to the bit.
TEST_P(CudaAdapterGrads, EachAtAnyAddress) {
  constexpr int64_t kOf = 66;
  const Products aligned = {{16, 8, Out::kA}, {8, 16, Out::kB, 8, 8}};
  const std::vector<Memory> out = expect_sums(type(), aligned, kOf);
  for_each("shifts", kAnyShifts, [&](const Shifts& shifts) {
    Products shifted = aligned;
    shifted[1].shifts = shifts;
    const std::vector<Memory> of_shifted = expect_sums(type(), shifted, kOf);
    EXPECT_TRUE(of_shifted[0] == out[0] && of_shifted[1] == out[1]);
  });
  expect_sums(type(), {{7, 3, Out::kA, 0, 0, 1, {1, 1, 1}}}, kOf);
}

/// Of each number of ranks that a block may have, more stages than are kept under way, several times.
TEST_P(CudaAdapterGrads, OfManyTokens) {
  constexpr int64_t kOf = 1155;
  expect_sums(type(), {{8, 8, Out::kA}, {.columns = 8, .rank = 8, .norm = kOffsetNorm}}, kOf);
  expect_sums(type(), {{8, 24, Out::kB}, {.columns = 8, .rank = 24, .norm = kPlainNorm}}, kOf);
}

// ---- Tokens divided among blocks.

TEST_P(CudaAdapterGrads, OfDividedTokens) {
  const Products even = {{72, 16, Out::kA}, {.columns = 8, .rank = 24, .norm = kOffsetNorm}},
                 odd = {{65, 7, Out::kB, 0, 0, -2}, {7, 80, Out::kA}};
  for (const Products& products : {even, odd}) {
    for (const auto& [tokens, part] :
         {std::pair<int64_t, int64_t>{130, 64}, {256, 128}, {65, 64}}) {
      expect_sums(type(), products, operands_of(type(), products, tokens), tokens, part);
      if (HasFailure()) return;
    }
  }
}

/// The same to the bit as sums of the parts, one after the other.
TEST_P(CudaAdapterGrads, DividedTokensAreAddedInTheirOrder) {
  constexpr int64_t kOf = 192, kPart = 64;
  const Product product{8, 16};
  const std::vector<Operands> in = operands_of(type(), {product}, kOf);
  std::vector<float> total(static_cast<size_t>(product.columns * product.rank));
  for (int64_t token = 0; token < kOf; token += kPart) {
    const Memory made = Memory::raw(std::vector<float>(total.size()));
    AdapterGrad grad = grad_of(product, in[0], made);
    grad.wide =
        in[0].wide.as<char>() + token * product.columns * static_cast<int64_t>(size_of(type()));
    grad.thin =
        in[0].thin.as<char>() + token * product.rank * static_cast<int64_t>(size_of(type()));
    launch_adapter_grads(type(), {{grad}, 1, kPart, kPart, nullptr, nullptr}, nullptr);
    const std::vector<float> some = made.to<float>();
    for (size_t i = 0; i < total.size(); ++i) total[i] += some[i];
  }
  std::vector<float> expected = in[0].before.to<float>();
  for (size_t i = 0; i < total.size(); ++i) expected[i] += total[i];
  EXPECT_TRUE(same(Type::kFloat32, expect_sums(type(), {product}, in, kOf, kPart)[0], expected));
}

// ---- One wide side for several matrices.

/// Of these ranks, in consecutive columns of one thin side.
struct Parts {
  std::vector<int64_t> ranks;
  int64_t columns;
  Out out;
  OfNorm norm = {};
};
void PrintTo(const Parts& parts, std::ostream* out) {
  *out << testing::PrintToString(parts.ranks) << ", " << parts.columns << " columns";
}
const Parts kParts[] = {{{16, 16, 16}, 72, Out::kA, kOffsetNorm},
                        {{8, 16}, 65, Out::kA},
                        {{3, 5, 1, 7}, 8, Out::kA},
                        {{16, 8}, 64, Out::kB},
                        {{20, 30, 40}, 8, Out::kA, kPlainNorm},
                        {{64, 1}, 9, Out::kB}};

/// The same to the bit as a product for each.
TEST_P(CudaAdapterGrads, OfSeveralMatrices) {
  constexpr int64_t kOf = 130;
  for_each("parts", kParts, [&](const Parts& parts) {
    int64_t rank = 0;
    for (const int64_t each : parts.ranks) rank += each;
    const Product whole{
        .columns = parts.columns, .rank = rank, .out = parts.out, .norm = parts.norm};
    const std::vector<Operands> in = operands_of(type(), {whole}, kOf);
    for (const int64_t part_tokens : {int64_t{0}, int64_t{64}}) {
      std::vector<Memory> joint, alone;
      const Memory none = Memory::raw(std::vector<float>());
      AdapterGrad grad = grad_of(whole, in[0], none);
      grad.parts = 0;
      int64_t first = 0;
      for (const int64_t each : parts.ranks) {
        const Product own{.columns = parts.columns,
                          .rank = each,
                          .out = parts.out,
                          .thin_gap = rank - each,
                          .scale = 1 + static_cast<float>(first),
                          .norm = parts.norm};
        const Memory before = Memory::raw(normal(parts.columns * each, 7));
        joint.push_back(before), alone.push_back(before);
        AdapterGrad one = grad_of(own, in[0], alone.back());
        one.thin = in[0].thin.as<char>() + first * static_cast<int64_t>(size_of(type()));
        launch_divided(type(), {{one}, 1, kOf, kOf, nullptr, nullptr}, part_tokens);
        grad.part[grad.parts++] = grad_of(own, in[0], joint.back()).part[0];
        first += each;
      }
      launch_divided(type(), {{grad}, 1, kOf, kOf, nullptr, nullptr}, part_tokens);
      for (size_t i = 0; i < joint.size(); ++i) EXPECT_TRUE(joint[i] == alone[i]) << "matrix " << i;
    }
  });
}

TEST_P(CudaAdapterGrads, OfNothing) {
  expect_sums(type(), {}, 3);
  expect_sums(type(), {{0, 8}}, 3);
  expect_sums(type(), {{8, 0}}, 3);
  expect_sums(type(), {{0, 0}, {0, 8}}, 3);
  expect_sums(type(), kMixed, 0);
  expect_sums(type(), {{0, 8}, {8, 8}, {8, 0}, {0, 32}, {65, 4, Out::kA}, {0, 4}}, 3);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

/// In the place of one number of a matrix.
void put(Type type, const Memory& at, int64_t element, float value) {
  const Memory number = Memory::of(type, {value});
  std::memcpy(at.as<char>() + static_cast<size_t>(element) * number.bytes(), number.data(),
              number.bytes());
}
int64_t count_of_nans(const Memory& out) {
  int64_t count = 0;
  for (const float value : out.to<float>()) count += std::isnan(value) ? 1 : 0;
  return count;
}

/// NaN and infinity stay in their column of their product.
TEST_P(CudaAdapterGrads, NanStaysInItsColumn) {
  constexpr int64_t kOf = 66;
  const Products even = {{16, 16, Out::kB}, {72, 24, Out::kA}, {8, 8, Out::kB}},
                 odd = {{16, 16, Out::kB}, {70, 17, Out::kA}, {8, 8, Out::kB}};
  for (const Products& products : {even, odd}) {
    const int64_t columns = products[1].columns, rank = products[1].rank;
    auto in = operands_of(type(), products, kOf);
    put(type(), in[1].wide, 65 * columns + 65, kNan);
    put(type(), in[1].thin, 0 * rank + 16, kNan);
    EXPECT_EQ(count_of_nans(expect_sums(type(), products, in, kOf)[1]), rank + columns - 1);
    in = operands_of(type(), products, kOf);
    put(type(), in[0].thin, 65 * 16 + 15, kNan);
    put(type(), in[1].wide, 64 * columns + 63, kInfinity);
    put(type(), in[1].thin, 5 * rank + 3, -kInfinity);
    put(Type::kFloat32, in[2].before, 13, kNan);
    const std::vector<Memory> out = expect_sums(type(), products, in, kOf);
    EXPECT_EQ(count_of_nans(out[0]), 16);
    EXPECT_EQ(count_of_nans(out[2]), 1);
  }
}

// ---- Where the wide side is rms_norm(x), of which x and the norm's factors are given.

/// Half of them with each offset.
TEST_P(CudaAdapterGrads, OfANormOfEachShape) {
  for (size_t rank = 0; rank < std::size(kRanks); ++rank) {
    for (size_t columns = 0; columns < std::size(kColumns); ++columns) {
      const size_t sum = rank + columns;
      if (type() != Type::kFloat32 && sum % 2 != 0) continue;
      expect_sums(type(),
                  {{.columns = kColumns[columns],
                    .rank = kRanks[rank],
                    .out = columns % 2 == 0 ? Out::kA : Out::kB,
                    .scale = kScales[(sum + rank) % std::size(kScales)],
                    .norm = (rank + columns / 2) % 2 == 0 ? kPlainNorm : kOffsetNorm}},
                  kTokens[1 + (sum + rank) % (std::size(kTokens) - 1)]);
      if (HasFailure()) return;
    }
  }
}

TEST_P(CudaAdapterGrads, OfANormOfAnyNumberOfTokens) {
  for (const int64_t tokens : kTokens) {
    expect_sums(type(), {{.columns = 72, .rank = 16, .out = Out::kA, .norm = kOffsetNorm}}, tokens);
    expect_sums(type(), {{.columns = 65, .rank = 3, .scale = -2, .norm = kPlainNorm}}, tokens);
    if (HasFailure()) return;
  }
}

/// Some of a launch's products have a norm, in turns.
Products with_norms(const Products& products, size_t first) {
  Products all = products;
  for (size_t i = first; i < all.size(); i += 2)
    all[i].norm = i % 4 == first ? kOffsetNorm : kPlainNorm;
  return all;
}

/// With norms and without in one launch: each to the bit as if it were alone.
TEST_P(CudaAdapterGrads, WithAndWithoutNorms) {
  constexpr int64_t kOf = 65;
  for (const Products& of : {kEven, kMixed}) {
    for (const size_t first : {0U, 1U}) {
      const Products products = with_norms(of, first);
      const std::vector<Operands> in = operands_of(type(), products, kOf);
      const std::vector<Memory> out = expect_sums(type(), products, in, kOf);
      for (const size_t i : {0U, 4U, 5U}) {
        EXPECT_TRUE(expect_sums(type(), {products[i]}, {in[i]}, kOf)[0] == out[i])
            << "product " << i;
      }
      if (HasFailure()) return;
    }
  }
}

TEST_P(CudaAdapterGrads, NormedRowsFurtherApartThanLong) {
  for_each("gaps", kGaps, [&](const Gaps& gaps) {
    expect_sums(type(),
                {{.columns = 16,
                  .rank = 8,
                  .out = Out::kA,
                  .wide_gap = gaps.wide,
                  .thin_gap = gaps.thin,
                  .norm = kOffsetNorm},
                 {.columns = 7,
                  .rank = 3,
                  .wide_gap = gaps.wide,
                  .thin_gap = gaps.thin,
                  .norm = kPlainNorm}},
                17);
    expect_sums(type(),
                {{.columns = 72,
                  .rank = 16,
                  .wide_gap = gaps.wide,
                  .thin_gap = gaps.thin,
                  .norm = kPlainNorm}},
                66);
  });
}

/// Factors and weights are read one by one: the same to the bit wherever they are.
TEST_P(CudaAdapterGrads, NormsAtAnyAddress) {
  constexpr int64_t kOf = 66;
  Products products = {{.columns = 72, .rank = 8, .out = Out::kA, .norm = kOffsetNorm}};
  const std::vector<Memory> out = expect_sums(type(), products, kOf);
  constexpr Shifts kOne[] = {{0, 0, 0, 1, 0}, {0, 0, 0, 0, 1}, {0, 0, 0, 3, 5},
                             {1, 0, 0, 1, 1}, {0, 1, 0, 0, 1}, {0, 0, 1, 1, 0}};
  for_each("shifts", kOne, [&](const Shifts& shifts) {
    products[0].shifts = shifts;
    EXPECT_TRUE(expect_sums(type(), products, kOf)[0] == out[0]);
  });
}

/// A norm with factors of 1 and gains of 1 is none, to the bit.
TEST_P(CudaAdapterGrads, NormOfOnes) {
  constexpr int64_t kOf = 66;
  const Products plain = {{.columns = 72, .rank = 24, .scale = 0.5F}};
  Products normed = plain;
  auto in = operands_of(type(), plain, kOf);
  const std::vector<Memory> expected = expect_sums(type(), plain, in, kOf);
  const Memory ones = Memory::raw(std::vector<float>(kOf, 1)),
               gains[] = {Memory::of(type(), std::vector<float>(72, 1)),
                          Memory::of(type(), std::vector<float>(72, 0))};
  std::memcpy(in[0].rstd.data(), ones.data(), ones.bytes());
  for (const size_t offset : {0U, 1U}) {
    normed[0].norm = {true, static_cast<float>(offset)};
    std::memcpy(in[0].weight.data(), gains[offset].data(), gains[offset].bytes());
    EXPECT_TRUE(expect_sums(type(), normed, in, kOf)[0] == expected[0]) << "offset " << offset;
  }
}

/// x with the rstd that the norm's own kernel writes, against the norm's in fp64.
TEST_P(CudaAdapterGrads, OfWhatTheNormLeaves) {
  constexpr int64_t kOf = 66, kWidth = 72;
  constexpr float kEps = 1e-5F;
  const Product product{.columns = kWidth, .rank = 16, .out = Out::kA, .norm = kOffsetNorm};
  const auto exact = operands_of(type(), {product}, kOf), by_kernel = exact;
  const auto x = floats(type(), exact[0].wide);
  for (int64_t token = 0; token < kOf; ++token) {
    double sum = 0;
    for (int64_t i = 0; i < kWidth; ++i)
      sum += std::pow(x[static_cast<size_t>(token * kWidth + i)], 2.0);
    exact[0].rstd.as<float>()[token] = static_cast<float>(1 / std::sqrt(sum / kWidth + kEps));
  }
  const Memory y = Memory::nans(type(), kOf * kWidth);
  const NormForward norm{.x = by_kernel[0].wide.data(),
                         .weight = by_kernel[0].weight.data(),
                         .y = y.data(),
                         .copy = nullptr,
                         .rstd = by_kernel[0].rstd.as<float>(),
                         .rows = kOf,
                         .hidden = kWidth,
                         .y_stride = kWidth,
                         .eps = kEps,
                         .offset = kOffsetNorm.offset};
  launch_rms_norm_forward(type(), norm, nullptr);
  const Memory out = expect_sums(type(), {product}, by_kernel, kOf)[0];
  EXPECT_TRUE(close(Type::kFloat32, out, expected_of(type(), product, exact[0], kOf),
                    roundings_of(product, kOf)));
}

/// NaN in a weight stays in its column, in a LoRA factor in its product.
TEST_P(CudaAdapterGrads, NanOfANorm) {
  constexpr int64_t kOf = 66;
  const Products products = with_norms({{16, 16, Out::kB}, {72, 24, Out::kA}, {8, 8, Out::kB}}, 0);
  auto in = operands_of(type(), products, kOf);
  put(type(), in[0].weight, 15, kNan);
  put(Type::kFloat32, in[2].rstd, 65, kNan);
  put(Type::kFloat32, in[1].rstd, 3, kNan);  // of a product without a norm
  put(type(), in[1].weight, 3, kNan);
  const std::vector<Memory> out = expect_sums(type(), products, in, kOf);
  EXPECT_EQ(count_of_nans(out[0]), 16);
  EXPECT_EQ(count_of_nans(out[1]), 0);
  EXPECT_EQ(count_of_nans(out[2]), 64);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
