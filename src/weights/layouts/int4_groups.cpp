#include "sftrun/weights/int4_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "layouts.h"
#include "sftrun/core/error.h"
#include "sftrun/weights/convert.h"

/// The tensors of a matrix: MODULE.qweight, .qzeros, .scales and GPTQ's .g_idx; or MODULE.weight_packed,
/// .weight_scale, .weight_shape, .weight_zero_point and .weight_g_idx. See sftrun/weights/int4_groups.h.
namespace sftrun::weights {
namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t kOfWord = 8;  ///< codes
constexpr int kSymmetricZero = 8;
constexpr const char* kWords = "I32";

int64_t words_of(int64_t codes) {
  return (codes + kOfWord - 1) / kOfWord;
}

uint32_t word_at(std::span<const std::byte> words, int64_t i) {
  uint32_t word;
  std::memcpy(&word, words.data() + i * 4, sizeof(word));
  return word;
}

int nibble_of(uint32_t word, int64_t place) {
  return static_cast<int>(word >> (4 * place) & 15);
}

/// Nibble of row 0 to 7 in a word of AWQ.
int64_t awq_place(int64_t row) {
  constexpr std::array<int64_t, kOfWord> kPlaces = {0, 4, 1, 5, 2, 6, 3, 7};
  return kPlaces[static_cast<size_t>(row % kOfWord)];
}

int code_at(const CodedMatrix& matrix, int64_t row, int64_t column) {
  const auto in = [&](int64_t word, int64_t place) {
    return nibble_of(word_at(matrix.codes, word), place);
  };
  if (matrix.layout == QuantLayout::kAwq)
    return in(column * words_of(matrix.rows) + row / kOfWord, awq_place(row));
  if (matrix.layout == QuantLayout::kGptq)
    return in(column / kOfWord * matrix.rows + row, column % kOfWord);
  return in(row * words_of(matrix.columns) + column / kOfWord, column % kOfWord);
}

int zero_at(const CodedMatrix& matrix, int64_t row, int64_t group) {
  if (matrix.zeros.empty()) return kSymmetricZero;
  const bool is_compressed = matrix.layout == QuantLayout::kCompressedInt4;
  const int64_t word = is_compressed ? row / kOfWord * matrix.groups_of_row() + group
                                     : group * words_of(matrix.rows) + row / kOfWord;
  const int code = nibble_of(word_at(matrix.zeros, word),
                             matrix.layout == QuantLayout::kAwq ? awq_place(row) : row % kOfWord);
  return matrix.zeros_are_less_one ? (code + 1) % 16 : code;
}

float scale_at(const CodedMatrix& matrix, int64_t row, int64_t group) {
  return matrix.scale(matrix.layout == QuantLayout::kCompressedInt4
                          ? row * matrix.groups_of_row() + group
                          : group * matrix.rows + row);
}

int64_t group_at(const CodedMatrix& matrix, int64_t column) {
  return matrix.column_groups.empty() ? column / matrix.group
                                      : static_cast<int64_t>(word_at(matrix.column_groups, column));
}

/// Two codes in each byte, the first in the high nibble, of eight that begin in the low nibble.
uint32_t first_high(uint32_t word) {
  return (word & 0x0f0f0f0fU) << 4 | (word >> 4 & 0x0f0f0f0fU);
}

/// Int4Names of the tensors beside a matrix' codes.
struct Int4Names {
  const char *codes, *scales, *zeros, *column_groups;
};
constexpr Int4Names kOfGptq{".qweight", ".scales", ".qzeros", ".g_idx"};
constexpr Int4Names kOfCompressed{".weight_packed", ".weight_scale", ".weight_zero_point",
                                  ".weight_g_idx"};
constexpr const char* kWeightShape = ".weight_shape";

constexpr const Int4Names& int4_names_of(QuantLayout layout) {
  return layout == QuantLayout::kCompressedInt4 ? kOfCompressed : kOfGptq;
}

/// Reads and checks the tensors of one matrix.
class Int4Reader {
 public:
  Int4Reader(QuantLayout layout, const std::string& name, const FindEntry& find,
             const std::string& where)
      : layout_(layout), module_(module_of_weight(name)), find_(find), where_(where) {}

  CodedMatrix read(const Shape& shape, const spec::QuantizationConfig& config) {
    if (shape.size() != 2) fail("a matrix has two dimensions, and no experts in one tensor");
    CodedMatrix matrix{.format = QuantFormat::kInt4Groups, .layout = layout_};
    matrix.rows = shape[0], matrix.columns = shape[1];
    require_shape(shape);
    matrix.codes = words(names().codes, codes_shape(matrix.rows, matrix.columns), config);
    read_scales(matrix);
    const int64_t groups = matrix.groups_of_row();
    read_zeros(matrix, groups, config);
    matrix.group = group_size(matrix.columns, groups, config);
    if (const SafetensorsEntry* entry = find_(module_ + names().column_groups))
      read_column_groups(matrix, groups, *entry);
    if (matrix.group == 0)
      fail(fmt::format("`{}{}` has {} groups of {} columns, and nothing says how they are divided",
                       module_, names().scales, groups, matrix.columns));
    return matrix;
  }

 private:
  const Int4Names& names() const { return int4_names_of(layout_); }
  bool is_compressed() const { return layout_ == QuantLayout::kCompressedInt4; }

  [[noreturn]] void fail(const std::string& what,
                         const char* fix = "download or copy the model again") const {
    throw DataError(fmt::format("4-bit matrix `{}`: {}", module_, what), where_, fix);
  }

  Shape codes_shape(int64_t rows, int64_t columns) const {
    switch (layout_) {
      case QuantLayout::kAwq:
        return {columns, words_of(rows)};
      case QuantLayout::kGptq:
        return {words_of(columns), rows};
      default:
        return {rows, words_of(columns)};
    }
  }

  const SafetensorsEntry& require(const char* ending) const {
    const SafetensorsEntry* entry = find_(module_ + ending);
    if (entry == nullptr) fail(fmt::format("`{}{}` is missing", module_, ending));
    return *entry;
  }

  [[noreturn]] void fail_shape(const char* ending, const SafetensorsEntry& entry,
                               const Shape& expected) const {
    fail(fmt::format("`{}{}` is {} [{}], expected [{}]", module_, ending, entry.dtype,
                     fmt::join(entry.shape, ", "), fmt::join(expected, ", ")));
  }

  std::span<const std::byte> words(const char* ending, const Shape& shape,
                                   const spec::QuantizationConfig& config) const {
    const SafetensorsEntry& entry = require(ending);
    if (entry.dtype != kWords) {
      fail(
          fmt::format("`{}{}` is stored as {}, expected {}", module_, ending, entry.dtype, kWords));
    }
    if (entry.shape != shape) {
      if (const int64_t bits = bits_of(entry.shape, shape); bits != 0) {
        fail(fmt::format("its codes have {} bits{}; supported: 4", bits,
                         config.bits.empty() ? "" : ", unlike config.json's"),
             "use a checkpoint whose matrices all have 4 bits, or the unquantised one; "
             "`tuning.quant` quantises it when it is loaded");
      }
      fail_shape(ending, entry, shape);
    }
    return entry.bytes;
  }

  /// For which the words would be these, of the same matrix; 0: none.
  static int64_t bits_of(const Shape& found, const Shape& expected) {
    if (found.size() != 2) return 0;
    for (const int64_t bits : {2, 3, 8}) {
      for (const size_t dim : {size_t{0}, size_t{1}}) {
        const bool fits = found[dim] * 4 == expected[dim] * bits;
        if (fits && found[1 - dim] == expected[1 - dim]) return bits;
      }
    }
    return 0;
  }

  /// compressed-tensors pads the last word, and says the columns.
  void require_shape(const Shape& shape) const {
    if (!is_compressed()) {
      const int64_t packed = layout_ == QuantLayout::kAwq ? shape[0] : shape[1];
      if (packed % kOfWord != 0 || shape[0] % kOfWord != 0)
        fail(fmt::format("[{}] is no multiple of {} codes, which share a word",
                         fmt::join(shape, ", "), kOfWord));
      return;
    }
    const SafetensorsEntry& entry = require(kWeightShape);
    if ((entry.dtype != "I64" && entry.dtype != "I32") || entry.shape != Shape{2})
      fail_shape(kWeightShape, entry, {2});
    const size_t size = entry.bytes.size() / 2;
    Shape stored;
    for (size_t i = 0; i < 2; ++i) {
      int64_t value = 0;
      std::memcpy(&value, entry.bytes.data() + i * size, size);
      stored.push_back(value);
    }
    if (stored == shape) return;
    throw DataError(fmt::format("tensor `{}.weight` has the shape [{}], expected [{}]", module_,
                                fmt::join(stored, ", "), fmt::join(shape, ", ")),
                    where_, "configuration and weights are of different models");
  }

  void read_scales(CodedMatrix& matrix) const {
    const SafetensorsEntry& entry = require(names().scales);
    const auto dtype = float_dtype(entry.dtype);
    if (!dtype) {
      fail(fmt::format("`{}{}` is stored as {}, expected F16, BF16 or F32", module_, names().scales,
                       entry.dtype));
    }
    const size_t of_rows = is_compressed() ? 0 : 1;
    if (entry.shape.size() != 2 || entry.shape[of_rows] != matrix.rows ||
        entry.shape[1 - of_rows] < 1 || entry.shape[1 - of_rows] > matrix.columns) {
      fail(fmt::format("`{}{}` has the shape [{}], expected {}", module_, names().scales,
                       fmt::join(entry.shape, ", "),
                       is_compressed() ? fmt::format("[{}, groups]", matrix.rows)
                                       : fmt::format("[groups, {}]", matrix.rows)));
    }
    matrix.scales = entry.bytes;
    matrix.scale_dtype = *dtype;
    const auto count = static_cast<int64_t>(entry.bytes.size()) / size_of(*dtype);
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(matrix.scale(i)))
        fail(fmt::format("value {} of `{}{}` is {}", i, module_, names().scales, matrix.scale(i)));
    }
  }

  void read_zeros(CodedMatrix& matrix, int64_t groups,
                  const spec::QuantizationConfig& config) const {
    if (is_compressed()) {
      if (find_(module_ + names().zeros) != nullptr)
        matrix.zeros = words(names().zeros, {words_of(matrix.rows), groups}, config);
      else if (!config.is_symmetric)
        require(names().zeros);
      return;
    }
    matrix.zeros = words(names().zeros, {groups, words_of(matrix.rows)}, config);
    matrix.zeros_are_less_one = layout_ == QuantLayout::kGptq && !config.has_whole_zeros();
  }

  /// 0: nothing says it
  static int64_t group_size(int64_t columns, int64_t groups,
                            const spec::QuantizationConfig& config) {
    if (groups == 1) return columns;
    for (const int64_t size : config.group_sizes)
      if (size > 0 && (columns + size - 1) / size == groups) return size;
    return columns % groups == 0 ? columns / groups : 0;
  }

  /// An order that is that of the columns is left out.
  void read_column_groups(CodedMatrix& matrix, int64_t groups,
                          const SafetensorsEntry& entry) const {
    const char* ending = names().column_groups;
    if (entry.dtype != kWords || entry.shape != Shape{matrix.columns})
      fail_shape(ending, entry, {matrix.columns});
    std::vector<int32_t> of_columns(static_cast<size_t>(matrix.columns));
    std::memcpy(of_columns.data(), entry.bytes.data(), entry.bytes.size());
    // compressed-tensors: not used
    if (is_compressed() && std::ranges::find(of_columns, -1) != of_columns.end()) return;
    for (size_t i = 0; i < of_columns.size(); ++i) {
      if (of_columns[i] < 0 || of_columns[i] >= groups) {
        fail(fmt::format("`{}{}` has column {} in group {}, and there are {} groups", module_,
                         ending, i, of_columns[i], groups));
      }
    }
    const auto regular_size =
        std::ranges::find_if(of_columns, [](int32_t group) { return group != 0; }) -
        of_columns.begin();
    for (int64_t i = 0; i < matrix.columns; ++i) {
      if (of_columns[static_cast<size_t>(i)] == i / std::max<int64_t>(1, regular_size)) continue;
      matrix.column_groups = entry.bytes;
      matrix.group = matrix.columns;
      return;
    }
    matrix.group = regular_size;
  }

  QuantLayout layout_;
  std::string module_;
  const FindEntry& find_;
  const std::string& where_;
};

/// Of AWQ and GPTQ, whose tensors have the same names, the shapes differ. What is neither, or has no scales,
/// is read as GPTQ, which says what is wrong.
bool is_awq(const std::string& module, const FindEntry& find) {
  const SafetensorsEntry *codes = find(module + kOfGptq.codes),
                         *scales = find(module + kOfGptq.scales),
                         *zeros = find(module + kOfGptq.zeros);
  if (codes == nullptr || codes->shape.size() != 2) return false;
  if (scales != nullptr && scales->shape.size() == 2)
    return codes->shape[1] * kOfWord == scales->shape[1];
  return zeros != nullptr && zeros->shape.size() == 2 && codes->shape[1] == zeros->shape[1];
}

template <QuantLayout kLayout>
bool holds_int4(const std::string& name, const FindEntry& find) {
  const std::string module = module_of_weight(name);
  const SafetensorsEntry* codes =
      module.empty() ? nullptr : find(module + int4_names_of(kLayout).codes);
  if (codes == nullptr) return false;
  // compressed-tensors' floats of 4 bits have bytes under the same name.
  if (kLayout == QuantLayout::kCompressedInt4) return codes->dtype == kWords;
  return is_awq(module, find) == (kLayout == QuantLayout::kAwq);
}

template <QuantLayout kLayout>
std::vector<std::string> beside_int4(const std::string& name, const FindEntry& find) {
  const Int4Names& names = int4_names_of(kLayout);
  std::vector<std::string> found;
  for (const char* ending : {names.scales, names.zeros, names.column_groups, kWeightShape}) {
    const std::string beside = module_of_weight(name) + ending;
    if (find(beside) != nullptr) found.push_back(beside);
  }
  return found;
}

template <QuantLayout kLayout>
std::vector<CodedMatrix> read_int4(const std::string& name, const Shape& shape,
                                   const FindEntry& find, const std::string& where,
                                   const spec::QuantizationConfig& config) {
  return {Int4Reader(kLayout, name, find, where).read(shape, config)};
}

void dequantize_int4(const CodedMatrix& matrix, int64_t first, int64_t count, float* out) {
  const int64_t columns = matrix.columns;
  int64_t row = first / columns, column = first % columns, group = -1;
  float scale = 0, zero = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (const int64_t here = group_at(matrix, column); here != group) {
      group = here;
      scale = scale_at(matrix, row, group);
      zero = static_cast<float>(zero_at(matrix, row, group));
    }
    *out++ = (static_cast<float>(code_at(matrix, row, column)) - zero) * scale;
    if (++column < columns) continue;
    column = 0, ++row, group = -1;
  }
}

template <QuantLayout kLayout>
constexpr StoredLayout layout_of_int4() {
  return {.layout = kLayout,
          .codes_ending = int4_names_of(kLayout).codes,
          .holds = holds_int4<kLayout>,
          .additional = beside_int4<kLayout>,
          .read = read_int4<kLayout>,
          .dequantize = dequantize_int4,
          .tensors = nullptr,
          .config = nullptr};
}

}  // namespace

constinit const StoredLayout kAwqLayout = layout_of_int4<QuantLayout::kAwq>();
constinit const StoredLayout kGptqLayout = layout_of_int4<QuantLayout::kGptq>();
constinit const StoredLayout kCompressedInt4Layout = layout_of_int4<QuantLayout::kCompressedInt4>();

void repack_int4(const CodedMatrix& matrix, int64_t first, int64_t count, uint8_t* out) {
  const int64_t row_bytes = (matrix.columns + 1) / 2;
  for (int64_t word = 0; word < words_of(matrix.columns); ++word) {
    const int64_t column = word * kOfWord, codes = std::min(kOfWord, matrix.columns - column);
    for (int64_t i = 0; i < count; ++i) {
      uint32_t eight = 0;
      if (matrix.layout == QuantLayout::kAwq) {
        for (int64_t k = 0; k < codes; ++k)
          eight |= static_cast<uint32_t>(code_at(matrix, first + i, column + k)) << (4 * k);
      } else if (matrix.layout == QuantLayout::kGptq) {
        eight = word_at(matrix.codes, word * matrix.rows + first + i);
      } else {
        eight = word_at(matrix.codes, (first + i) * words_of(matrix.columns) + word);
      }
      // What follows an odd number of columns is nobody's.
      if (codes < kOfWord) eight &= (uint32_t{1} << (4 * codes)) - 1;
      const uint32_t bytes = first_high(eight);
      std::memcpy(out + i * row_bytes + column / 2, &bytes, static_cast<size_t>((codes + 1) / 2));
    }
  }
}

void unpack_int4_groups(const CodedMatrix& matrix, int64_t first, int64_t count, float* scales,
                        uint8_t* zeros) {
  const int64_t groups = matrix.groups_of_row();
  for (int64_t row = first; row < first + count; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      *scales++ = scale_at(matrix, row, group);
      *zeros++ = static_cast<uint8_t>(zero_at(matrix, row, group));
    }
  }
}

std::vector<int32_t> int4_column_groups(const CodedMatrix& matrix) {
  std::vector<int32_t> groups(matrix.column_groups.size() / sizeof(int32_t));
  if (!groups.empty())
    std::memcpy(groups.data(), matrix.column_groups.data(), matrix.column_groups.size());
  return groups;
}

}  // namespace sftrun::weights
