#pragma once

#include <vector>

#include "cuda/packed.h"
#include "sftrun/weights/ggml_type.h"
#include "support.h"

/// Quantised matrices of random bytes, and their values.
namespace sftrun::kernels::cuda::test {

/// A format of 4 bits and how scales are held.
struct FourBitCase {
  bool is_fp4;
  int64_t block_size;
  bool nested;
  int64_t first_block;
};
inline void PrintTo(const FourBitCase& c, std::ostream* out) {
  *out << (c.is_fp4 ? "fp4" : "nf4") << " in blocks of " << c.block_size
       << (c.nested ? ", nested, first " : ", first ") << c.first_block;
}

/// Some numbers, or among them what is infinite, none or very small.
enum class Factors { kFinite, kAny };

class FourBitMatrix {
 public:
  /// @param shift of the scales, in elements   @param shift_of_codes in bytes
  FourBitMatrix(const FourBitCase& c, int64_t rows, int64_t columns,
                Factors scales = Factors::kFinite, int64_t shift = 0, int64_t shift_of_codes = 0);
  const FourBitView& view() const { return view_; }
  const FourBitTables& tables() const { return tables_; }
  /// Of each block, and each value: in fp32, rounded after every operation.
  std::vector<float> scales() const;
  std::vector<float> values() const;

 private:
  FourBitTables tables_;
  Memory packed_, absmax_, codes_, nested_absmax_;
  FourBitView view_;
};

/// What a code stands for.
float e4m3(uint8_t code);

class EightBitMatrix {
 public:
  EightBitMatrix(EightBits form, bool with_scales, int64_t rows, int64_t columns,
                 int64_t shift = 0);
  const EightBitView& view() const { return view_; }
  /// Without the two codes of e4m3 that are NaN.
  void make_finite();
  std::vector<float> values() const;

 private:
  Memory codes_, scales_;
  EightBitView view_;
};

/// Rows are in blocks of three, not in order: any row may have any scales.
class Fp8BlockMatrix {
 public:
  /// @param shift of the codes, in bytes
  Fp8BlockMatrix(int64_t rows, int64_t columns, int64_t block_size, int64_t shift = 0);
  const Fp8BlockView& view() const { return view_; }
  /// Without the two codes of e4m3 that are NaN.
  void make_finite();
  std::vector<float> values() const;

 private:
  Memory codes_, scales_, block_rows_;
  Fp8BlockView view_;
};

/// Groups of consecutive columns, or of columns that name one of five groups.
class Int4GroupMatrix {
 public:
  /// @param group_size 0: columns name their groups   @param shift of the codes, in bytes
  Int4GroupMatrix(int64_t rows, int64_t columns, int64_t group_size, int64_t shift = 0);
  const Int4GroupView& view() const { return view_; }
  std::vector<float> values() const;

 private:
  Memory packed_, scales_, zeros_, column_groups_;
  Int4GroupView view_;
};

/// A type of ggml's blocks: how many numbers and bytes each has, and where its scales in fp16 are.
struct GgmlCase {
  weights::GgmlType type;
  const char* name;
  int64_t numbers, bytes;
  std::vector<int> halves;
};
inline void PrintTo(const GgmlCase& c, std::ostream* out) {
  *out << c.name;
}
const std::vector<GgmlCase>& ggml_cases();

/// Random blocks with scales below 2^-7: sums of products stay within fp16.
std::vector<uint8_t> random_blocks(const GgmlCase& c, int64_t blocks, uint64_t seed);
/// By the CPU's kernels, which tests/kernels compares with the reader of files.
std::vector<float> values_of(const GgmlCase& c, const std::vector<uint8_t>& blocks);

}  // namespace sftrun::kernels::cuda::test
