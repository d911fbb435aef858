#include "sftrun/weights/int4_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "damaged_model.h"
#include "support/test_data.h"

/// AWQ, GPTQ and compressed-tensors' packed integers (scripts/fixtures/make_int4.py), whole and damaged.
/// Experts are tests/parity/int4_parity.py's.
namespace sftrun::weights {
namespace {

using test::kModels;
using test::read_all;

const std::string kInt4Down = "model.layers.0.mlp.down_proj";  // [96, 160]

const TensorInfo& info_of(const Checkpoint& checkpoint, const std::string& name) {
  return *std::ranges::find(checkpoint.tensors(), name, &TensorInfo::name);
}

std::vector<float> int4_values(const Checkpoint& checkpoint, const std::string& module) {
  return read_all(checkpoint, info_of(checkpoint, module + ".weight"));
}

/// What kernels would multiply by: repacked codes, scales and zero points.
std::vector<float> values_repacked(const CodedMatrix& matrix) {
  const int64_t row_bytes = (matrix.columns + 1) / 2, groups = matrix.groups_of_row();
  std::vector<uint8_t> packed(static_cast<size_t>(matrix.rows * row_bytes)),
      zeros(static_cast<size_t>(matrix.rows * groups));
  std::vector<float> scales(zeros.size()), values;
  // In two parts, as threads do
  const int64_t half = matrix.rows / 2, rest = matrix.rows - half;
  repack_int4(matrix, 0, half, packed.data());
  repack_int4(matrix, half, rest, packed.data() + half * row_bytes);
  unpack_int4_groups(matrix, 0, half, scales.data(), zeros.data());
  unpack_int4_groups(matrix, half, rest, scales.data() + half * groups,
                     zeros.data() + half * groups);
  const std::vector<int32_t> named = int4_column_groups(matrix);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column) {
      const int64_t group =
          named.empty() ? column / matrix.group : named[static_cast<size_t>(column)];
      const uint8_t byte = packed[static_cast<size_t>(row * row_bytes + column / 2)];
      const int code = column % 2 == 0 ? byte >> 4 : byte & 15;
      const auto of_row = static_cast<size_t>(row * groups + group);
      values.push_back(static_cast<float>(code - zeros[of_row]) * scales[of_row]);
    }
  }
  return values;
}

struct Stored {
  const char* model;
  size_t matrices;  ///< in 4 bits
  QuantLayout layout;
};
void PrintTo(const Stored& stored, std::ostream* out) {
  *out << stored.model;
}

class Int4Groups : public testing::TestWithParam<Stored> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Int4Groups,
                         testing::Values(Stored{"int4-awq", 7, QuantLayout::kAwq},
                                         Stored{"int4-gptq", 7, QuantLayout::kGptq},
                                         Stored{"int4-compressed", 6,
                                                QuantLayout::kCompressedInt4}));

TEST_P(Int4Groups, AreReadAsTheReferenceUnpacksThem) {
  const auto checkpoint = Checkpoint::open(kModels / GetParam().model);
  const SafetensorsFile expected(kModels / GetParam().model / "dequantised.safetensors");
  size_t matrices = 0, compared = 0;
  for (const TensorInfo& info : checkpoint->tensors()) {
    const auto packed = checkpoint->packed(info.name);
    if (!packed) continue;
    ++matrices;
    EXPECT_EQ(info.format, "INT4_GROUPS");
    const auto& matrix = std::get<CodedMatrix>(*packed);
    EXPECT_EQ(matrix.layout, GetParam().layout);
    const std::vector<float> values = read_all(*checkpoint, info);
    EXPECT_EQ(values_repacked(matrix), values) << info.name;
    const SafetensorsEntry* entry = expected.find(info.name);
    if (entry == nullptr) continue;
    ++compared;
    EXPECT_EQ(std::memcmp(values.data(), entry->bytes.data(), entry->bytes.size()), 0) << info.name;
  }
  EXPECT_EQ(matrices, GetParam().matrices);
  EXPECT_EQ(compared, 3U);
}

TEST(Int4Columns, StayTogetherAsTheirGroupsWant) {
  const auto of_down = [](const char* model) {
    return values_per_block(*Checkpoint::open(kModels / model)->packed(kInt4Down + ".weight"));
  };
  EXPECT_EQ(of_down("int4-awq"), 32);
  EXPECT_EQ(of_down("int4-gptq"), 2) << "columns name their groups";
  EXPECT_EQ(of_down("int4-compressed"), 2) << "one group";
}

/// A word of eight codes c = 0, 1, ..., 7 in nibbles c.
uint32_t ascending_word() {
  return 0x76543210;
}

class DamagedGptq : public test::DamagedModel {
 protected:
  DamagedGptq() : DamagedModel(kModels / "int4-gptq") {}

  Tensor& of(const char* ending) { return entries_.at(kInt4Down + ending); }
  template <typename T>
  void put(const char* ending, size_t i, T value) {
    std::memcpy(of(ending).bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
};

TEST_F(DamagedGptq, CodesScalesAndZeroPointsAreWhereTheyAre) {
  put<uint32_t>(".qweight", 1 * 96 + 5, ascending_word());  // columns 8 to 15 of row 5
  // Row 5 of each of three groups: zero points 3, 0 and 8, stored minus one.
  for (const auto& [group, stored] : {std::pair<size_t, uint32_t>{0, 2}, {1, 15}, {2, 7}})
    put<uint32_t>(".qzeros", group * 12, stored << 20);
  for (const auto& [group, half] :
       {std::pair<size_t, uint16_t>{0, 0x3c00}, {1, 0x4000}, {2, 0x4400}})
    put<uint16_t>(".scales", group * 96 + 5, half);  // 1, 2, 4
  for (int32_t i = 0; i < 160; ++i) put<int32_t>(".g_idx", static_cast<size_t>(i), i % 3);
  const std::vector<float> values = int4_values(*open(), kInt4Down);
  constexpr float kZeros[] = {3, 0, 8}, kScales[] = {1, 2, 4};
  for (size_t code = 0; code < 8; ++code) {
    const size_t column = 8 + code, group = column % 3;
    EXPECT_EQ(values[5 * 160 + column],
              (static_cast<float>(code) - kZeros[group]) * kScales[group]);
  }
}

/// Groups that follow one another need no names, also where the last is shorter.
TEST_F(DamagedGptq, OrdersThatAreTheColumnsAreLeftOut) {
  for (int32_t i = 0; i < 160; ++i) put<int32_t>(".g_idx", static_cast<size_t>(i), i / 64);
  const auto checkpoint = open();
  const auto packed = checkpoint->packed(kInt4Down + ".weight");
  const auto& matrix = std::get<CodedMatrix>(*packed);
  EXPECT_TRUE(int4_column_groups(matrix).empty());
  EXPECT_EQ(matrix.group, 64);
  const std::vector<float> values = int4_values(*checkpoint, kInt4Down);
  EXPECT_EQ(values_repacked(matrix), values);
  entries_.erase(kInt4Down + ".g_idx");  // config.json says 64, too
  EXPECT_EQ(int4_values(*open(), kInt4Down), values);
}

TEST_F(DamagedGptq, TensorsThatAreMissingOrOfAnotherShape) {
  const auto whole = entries_;
  for (const char* ending : {".qzeros", ".scales"}) {
    entries_.erase(kInt4Down + ending);
    expect_refused({"4-bit matrix `" + kInt4Down + "`", "`" + kInt4Down + ending + "` is missing",
                    "model.safetensors", "fix: download or copy the model again"});
    entries_ = whole;
  }
  of(".qzeros").shape = {4, 9};
  expect_refused({"`" + kInt4Down + ".qzeros` is I32 [4, 9], expected [3, 12]"});
  entries_ = whole;
  of(".scales").shape = {96, 3};
  expect_refused({kInt4Down + ".scales` has the shape [96, 3], expected [groups, 96]"});
  entries_ = whole;
  of(".qweight").dtype = "F32";
  expect_refused({kInt4Down + ".qweight` is stored as F32, expected I32"});
  entries_ = whole;
  of(".qweight").shape = {96, 20};
  expect_refused({kInt4Down, "is I32 [96, 20], expected"});
}

TEST_F(DamagedGptq, OtherBitsThanConfigJsonSays) {
  for (const auto& [bits, rows] : {std::pair{2, 10}, {3, 15}, {8, 40}}) {
    of(".qweight") = {"I32", {rows, 96}, std::string(static_cast<size_t>(rows) * 96 * 4, 'x')};
    expect_refused({"4-bit matrix `" + kInt4Down + "`: its codes have " + std::to_string(bits) +
                        " bits, unlike config.json's; supported: 4",
                    "use a checkpoint whose matrices all have 4 bits"});
  }
}

TEST_F(DamagedGptq, GroupsThatDoNotExist) {
  for (const int32_t group : {-1, 3, 1 << 30}) {
    put<int32_t>(".g_idx", 7, group);
    expect_refused({kInt4Down + ".g_idx` has column 7 in group " + std::to_string(group) +
                    ", and there are 3 groups"});
  }
  of(".g_idx").shape = {80, 2};
  expect_refused({kInt4Down + ".g_idx` is I32 [80, 2], expected [160]"});
}

TEST_F(DamagedGptq, ScalesThatAreNotNumbers) {
  put<uint16_t>(".scales", 100, 0x7c00);  // infinite
  expect_refused({"value 100 of `" + kInt4Down + ".scales` is inf"});
}

/// Older writers add a bias to every layer; this model has none here.
TEST_F(DamagedGptq, BiasesOfZerosAreLeftOut) {
  entries_[kInt4Down + ".bias"] = {"F16", {96}, std::string(192, '\0')};
  EXPECT_EQ(int4_values(*open(), kInt4Down).size(), size_t{96 * 160});
  entries_[kInt4Down + ".bias"].bytes[5] = 'x';
  expect_refused({kInt4Down + ".bias"});
}

class DamagedAwq : public test::DamagedModel {
 protected:
  DamagedAwq() : DamagedModel(kModels / "int4-awq") {}
};

/// Rows 0, 4, 1, 5, 2, 6, 3 and 7 of a word, from the low nibble on, are the order's inverse.
TEST_F(DamagedAwq, RowsOfAWordAreInTheirOrder) {
  const uint32_t word = ascending_word();
  std::memcpy(entries_.at(kInt4Down + ".qweight").bytes.data() + 3 * 12 * 4, &word, 4);  // column 3
  std::memset(entries_.at(kInt4Down + ".qzeros").bytes.data(), 0, 4);  // of rows 0 to 7 of group 0
  const uint16_t one = 0x3c00;
  for (size_t row = 0; row < 8; ++row)
    std::memcpy(entries_.at(kInt4Down + ".scales").bytes.data() + row * 2, &one, 2);
  const std::vector<float> values = int4_values(*open(), kInt4Down);
  constexpr float kExpected[] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (size_t row = 0; row < 8; ++row) EXPECT_EQ(values[row * 160 + 3], kExpected[row]) << row;
}

TEST_F(DamagedAwq, WithoutZeroPoints) {
  entries_.erase(kInt4Down + ".qzeros");
  expect_refused({"`" + kInt4Down + ".qzeros` is missing"});
}

class DamagedIntegers : public test::DamagedModel {
 protected:
  DamagedIntegers() : DamagedModel(kModels / "int4-compressed") {}
};

TEST_F(DamagedIntegers, AreRefused) {
  const auto whole = entries_;
  entries_.erase(kInt4Down + ".weight_zero_point");  // config.json says that there are some
  expect_refused({"`" + kInt4Down + ".weight_zero_point` is missing"});
  entries_ = whole;
  entries_.erase(kInt4Down + ".weight_shape");
  expect_refused({"`" + kInt4Down + ".weight_shape` is missing"});
  entries_ = whole;
  entries_.at(kInt4Down + ".weight_shape").bytes[0] = 95;
  expect_refused({kInt4Down + ".weight` has the shape [95, 160], expected [96, 160]"});
  entries_ = whole;
  entries_.at(kInt4Down + ".weight_packed").shape = {48, 40};
  expect_refused({kInt4Down + ".weight_packed` is I32 [48, 40], expected [96, 20]"});
}

/// As compressed-tensors' older versions write them: -1 says that the order is not used.
TEST_F(DamagedIntegers, NamesOfGroupsThatAreNotUsed) {
  const std::vector<float> values = int4_values(*open(), kInt4Down);
  entries_[kInt4Down + ".weight_g_idx"] = {"I32", {160}, std::string(160 * 4, '\xff')};
  EXPECT_EQ(int4_values(*open(), kInt4Down), values);
}

}  // namespace
}  // namespace sftrun::weights
