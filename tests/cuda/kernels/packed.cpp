#include "packed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace sftrun::kernels::cuda::test {
namespace {

constexpr int64_t kNestedBlock = 256;
/// Quantiles of a normal distribution, and floats of 2 bits of exponent and 1 of mantissa.
constexpr float kNf4[16] = {-1.0F,
                            -0.6961928009986877F,
                            -0.5250730514526367F,
                            -0.39491748809814453F,
                            -0.28444138169288635F,
                            -0.18477343022823334F,
                            -0.09105003625154495F,
                            0.0F,
                            0.07958029955625534F,
                            0.16093020141124725F,
                            0.24611230194568634F,
                            0.33791524171829224F,
                            0.44070982933044434F,
                            0.5626170039176941F,
                            0.7229568362236023F,
                            1.0F};
constexpr float kFp4[16] = {0.0F,       0.0625F / 12, 8.0F / 12,  1.0F,          4.0F / 12,  0.5F,
                            2.0F / 12,  0.25F,        -0.0F,      -0.0625F / 12, -8.0F / 12, -1.0F,
                            -4.0F / 12, -0.5F,        -2.0F / 12, -0.25F};

FourBitTables tables_of(const FourBitCase& c) {
  FourBitTables tables{};
  std::copy_n(c.is_fp4 ? kFp4 : kNf4, 16, tables.values);
  std::vector<float> nested = normal(256, 11);
  std::sort(nested.begin(), nested.end());
  if (c.nested) std::copy(nested.begin(), nested.end(), tables.nested);
  return tables;
}

std::vector<float> block_scales(int64_t blocks, Factors scales) {
  std::vector<float> values = normal(blocks, 12);
  if (scales == Factors::kAny) {
    const float infinity = std::numeric_limits<float>::infinity();
    const float others[] = {std::nanf(""), infinity, -infinity, 0.0F, 1e-42F, 3e38F};
    for (size_t i = 0; i < values.size(); ++i) values[i] = others[i % 6];
  }
  return values;
}

int shift_of(int64_t block_size) {
  const auto size = static_cast<uint64_t>(block_size);
  return std::has_single_bit(size) ? std::countr_zero(size) : -1;
}

int64_t blocks_of(const FourBitCase& c, int64_t values) {
  return (values + c.block_size - 1) / c.block_size;
}
int64_t nested_blocks_of(const FourBitCase& c, int64_t values) {
  return c.nested ? (c.first_block + blocks_of(c, values) + kNestedBlock - 1) / kNestedBlock : 0;
}

}  // namespace

FourBitMatrix::FourBitMatrix(const FourBitCase& c, int64_t rows, int64_t columns, Factors scales,
                             int64_t shift, int64_t shift_of_codes)
    : tables_(tables_of(c)),
      packed_(Memory::raw(random_bytes((rows * columns + 1) / 2, 13), shift_of_codes)),
      absmax_(
          Memory::raw(block_scales(c.nested ? 0 : blocks_of(c, rows * columns), scales), shift)),
      codes_(Memory::raw(random_bytes(c.nested ? blocks_of(c, rows * columns) : 0, 14), shift)),
      nested_absmax_(Memory::raw(block_scales(nested_blocks_of(c, rows * columns), scales), shift)),
      view_{.packed = packed_.as<uint8_t>(),
            .absmax = c.nested ? nullptr : absmax_.as<float>(),
            .codes = c.nested ? codes_.as<uint8_t>() : nullptr,
            .nested_absmax = c.nested ? nested_absmax_.as<float>() : nullptr,
            .offset = 0.125F,
            .block_size = c.block_size,
            .first_block = c.first_block,
            .rows = rows,
            .columns = columns,
            .block_shift = shift_of(c.block_size),
            .nested_shift = shift_of(kNestedBlock),
            .tables = nullptr} {}

std::vector<float> FourBitMatrix::scales() const {
  if (view_.absmax != nullptr) return absmax_.to<float>();
  std::vector<float> scales;
  for (const uint8_t code : codes_.to<uint8_t>()) {
    const auto block = view_.first_block + static_cast<int64_t>(scales.size());
    // A statement each: what is rounded twice may not be fused.
    volatile float scaled = tables_.nested[code] * view_.nested_absmax[block / kNestedBlock];
    scales.push_back(scaled + view_.offset);
  }
  return scales;
}

std::vector<float> FourBitMatrix::values() const {
  const std::vector<float> scales = this->scales();
  std::vector<float> values;
  for (int64_t i = 0; i < view_.rows * view_.columns; ++i) {
    const uint8_t byte = view_.packed[i / 2];
    values.push_back(tables_.values[i % 2 == 0 ? byte >> 4 : byte & 15] *
                     scales[static_cast<size_t>(i / view_.block_size)]);
  }
  return values;
}

EightBitMatrix::EightBitMatrix(EightBits form, bool with_scales, int64_t rows, int64_t columns,
                               int64_t shift)
    : codes_(Memory::raw(random_bytes(rows * columns, 15), shift)),
      scales_(Memory::raw(normal(with_scales ? rows : 0, 16), shift)),
      view_{.codes = codes_.as<uint8_t>(),
            .scales = with_scales ? scales_.as<float>() : nullptr,
            .rows = rows,
            .columns = columns,
            .form = form} {}

void EightBitMatrix::make_finite() {
  for (int64_t i = 0; i < view_.rows * view_.columns; ++i)
    if ((view_.codes[i] & 0x7f) == 0x7f) codes_.as<uint8_t>()[i] = 0;
}

float e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  const double value = (code & 0x7f) == 0x7f ? std::nan("") : size;
  return static_cast<float>(code < 0x80 ? value : -value);
}

std::vector<float> EightBitMatrix::values() const {
  std::vector<float> values;
  for (int64_t i = 0; i < view_.rows * view_.columns; ++i) {
    const uint8_t code = view_.codes[i];
    const float scale = view_.scales == nullptr ? 1.0F : view_.scales[i / view_.columns];
    volatile float scaled = static_cast<float>(static_cast<int8_t>(code)) * scale;
    constexpr float kInverse127 = 1.0F / 127.0F;
    values.push_back(view_.form == EightBits::kE4m3 ? e4m3(code) * scale : scaled * kInverse127);
  }
  return values;
}

namespace {

constexpr int64_t kRowsOfBlocks = 3;

std::vector<int32_t> rows_of_blocks(int64_t rows) {
  std::vector<int32_t> of_rows;
  for (int64_t row = 0; row < rows; ++row)
    of_rows.push_back(static_cast<int32_t>(row * 2 % kRowsOfBlocks));
  return of_rows;
}

}  // namespace

Fp8BlockMatrix::Fp8BlockMatrix(int64_t rows, int64_t columns, int64_t block_size, int64_t shift)
    : codes_(Memory::raw(random_bytes(rows * columns, 17), shift)),
      scales_(Memory::raw(normal(kRowsOfBlocks * ((columns + block_size - 1) / block_size), 18))),
      block_rows_(Memory::raw(rows_of_blocks(rows))),
      view_{.codes = codes_.as<uint8_t>(),
            .scales = scales_.as<float>(),
            .block_rows = block_rows_.as<int32_t>(),
            .rows = rows,
            .columns = columns,
            .blocks_of_row = (columns + block_size - 1) / block_size,
            .block_shift = std::countr_zero(static_cast<uint64_t>(block_size))} {}

void Fp8BlockMatrix::make_finite() {
  for (int64_t i = 0; i < view_.rows * view_.columns; ++i)
    if ((view_.codes[i] & 0x7f) == 0x7f) codes_.as<uint8_t>()[i] = 0;
}

std::vector<float> Fp8BlockMatrix::values() const {
  std::vector<float> values;
  for (int64_t row = 0; row < view_.rows; ++row) {
    for (int64_t column = 0; column < view_.columns; ++column) {
      const int64_t block = row * 2 % kRowsOfBlocks * view_.blocks_of_row +
                            column / (int64_t{1} << view_.block_shift);
      values.push_back(e4m3(view_.codes[row * view_.columns + column]) * view_.scales[block]);
    }
  }
  return values;
}

namespace {

constexpr int64_t kNamedGroups = 5;

int64_t groups_in_row(int64_t columns, int64_t group_size) {
  return group_size == 0 ? kNamedGroups : (columns + group_size - 1) / group_size;
}

std::vector<uint8_t> zero_points(int64_t count) {
  std::vector<uint8_t> zeros = random_bytes(count, 20);
  for (uint8_t& zero : zeros) zero = zero % 16;
  return zeros;
}

std::vector<int32_t> named_groups(int64_t columns) {
  std::vector<int32_t> groups;
  for (int64_t column = 0; column < columns; ++column)
    groups.push_back(static_cast<int32_t>(column * 3 % kNamedGroups));
  return groups;
}

}  // namespace

Int4GroupMatrix::Int4GroupMatrix(int64_t rows, int64_t columns, int64_t group_size, int64_t shift)
    : packed_(Memory::raw(random_bytes(rows * ((columns + 1) / 2), 19), shift)),
      scales_(Memory::raw(normal(rows * groups_in_row(columns, group_size), 21))),
      zeros_(Memory::raw(zero_points(rows * groups_in_row(columns, group_size)))),
      column_groups_(Memory::raw(named_groups(columns))),
      view_{.packed = packed_.as<uint8_t>(),
            .scales = scales_.as<float>(),
            .zeros = zeros_.as<uint8_t>(),
            .column_groups = group_size == 0 ? column_groups_.as<int32_t>() : nullptr,
            .rows = rows,
            .columns = columns,
            .groups_of_row = groups_in_row(columns, group_size),
            .group_size = group_size == 0 ? columns : group_size} {}

std::vector<float> Int4GroupMatrix::values() const {
  std::vector<float> values;
  for (int64_t row = 0; row < view_.rows; ++row) {
    for (int64_t column = 0; column < view_.columns; ++column) {
      const int64_t named = column * 3 % kNamedGroups,
                    group = view_.column_groups == nullptr ? column / view_.group_size : named,
                    of_row = row * view_.groups_of_row + group;
      const uint8_t byte = view_.packed[row * ((view_.columns + 1) / 2) + column / 2];
      const int code = column % 2 == 0 ? byte / 16 : byte % 16;
      values.push_back(static_cast<float>(code - view_.zeros[of_row]) * view_.scales[of_row]);
    }
  }
  return values;
}

const std::vector<GgmlCase>& ggml_cases() {
  using weights::GgmlType;
  static const std::vector<GgmlCase> cases = {
      {GgmlType::kQ4_0, "Q4_0", 32, 18, {0}},      {GgmlType::kQ4_1, "Q4_1", 32, 20, {0, 2}},
      {GgmlType::kQ5_0, "Q5_0", 32, 22, {0}},      {GgmlType::kQ5_1, "Q5_1", 32, 24, {0, 2}},
      {GgmlType::kQ8_0, "Q8_0", 32, 34, {0}},      {GgmlType::kQ2_K, "Q2_K", 256, 84, {80, 82}},
      {GgmlType::kQ3_K, "Q3_K", 256, 110, {108}},  {GgmlType::kQ4_K, "Q4_K", 256, 144, {0, 2}},
      {GgmlType::kQ5_K, "Q5_K", 256, 176, {0, 2}}, {GgmlType::kQ6_K, "Q6_K", 256, 210, {208}},
      {GgmlType::kMxfp4, "MXFP4", 32, 17, {}}};
  return cases;
}

std::vector<uint8_t> random_blocks(const GgmlCase& c, int64_t blocks, uint64_t seed) {
  std::vector<uint8_t> bytes = random_bytes(blocks * c.bytes, seed);
  for (int64_t block = 0; block < blocks; ++block) {
    uint8_t* of = bytes.data() + block * c.bytes;
    for (const int half : c.halves) of[half + 1] &= 0x9f;
    if (c.type == weights::GgmlType::kMxfp4) of[0] = static_cast<uint8_t>(112 + of[0] % 24);
  }
  return bytes;
}

std::vector<float> values_of(const GgmlCase& c, const std::vector<uint8_t>& blocks) {
  const int64_t n = static_cast<int64_t>(blocks.size()) / c.bytes * c.numbers;
  std::vector<float> values(static_cast<size_t>(n));
  cpu_kernels().f32.dequantize_ggml(static_cast<uint32_t>(c.type), blocks.data(), 0, n,
                                    values.data());
  return values;
}

}  // namespace sftrun::kernels::cuda::test
