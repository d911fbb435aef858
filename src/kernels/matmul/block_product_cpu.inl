// Products of blocks that stay in the caches, for processors on which LibTorch's brgemm is not
// fast. Each sum is formed in an order that depends only on the depth: the products of kBlockDepth
// values one after the other, then the sums of these blocks. So a row's results do not depend on
// the other rows or on the number of threads.

#ifdef __AVX2__
constexpr int64_t kBlockDepth = 256;  // its panel of 16 columns takes half of an L1 cache of 32 KiB
constexpr int64_t kBlockColumns = 16;
#ifdef __AVX512F__
constexpr int kBlockRows = 16;  // whose sums are kept in registers
#else
constexpr int kBlockRows = 6;
#endif

/// c [kRows, 16] (+)= a [kRows, depth] panel [depth, 16]
template <int kRows>
SFTRUN_INLINE void multiply_rows(const float* a, int64_t a_stride, const float* panel,
                                 int64_t depth, bool add, float* c, int64_t c_stride) {
  Sixteen sums[kRows];
  for (Sixteen& sum : sums) sum = all(0.0F);
  for (int64_t k = 0; k < depth; ++k) {
    const Sixteen values = load_sixteen(panel + k * kBlockColumns);
    for (int r = 0; r < kRows; ++r) add_scaled(sums[r], values, a[r * a_stride + k]);
  }
  for (int r = 0; r < kRows; ++r) {
    float* to = c + r * c_stride;
    store_sixteen(to, add ? load_sixteen(to) + sums[r] : sums[r]);
  }
}

/// As multiply_rows, for `rows` <= kRows.
template <int kRows>
inline void multiply_last_rows(int64_t rows, const float* a, int64_t a_stride, const float* panel,
                               int64_t depth, bool add, float* c, int64_t c_stride) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      multiply_rows<kRows>(a, a_stride, panel, depth, add, c, c_stride);
    else
      multiply_last_rows<kRows - 1>(rows, a, a_stride, panel, depth, add, c, c_stride);
  }
}

/// Rows [0, depth) of 16 columns of b (row stride n), in fp32.
inline void unpack_panel(const float* b, int64_t n, int64_t depth, float* panel) {
  for (int64_t k = 0; k < depth; ++k)
    __builtin_memcpy(panel + k * kBlockColumns, b + k * n, kBlockColumns * sizeof(float));
}
/// From VNNI layout: a word has two rows' values of one column.
inline void unpack_panel(const uint16_t* b, int64_t n, int64_t depth, float* panel) {
  for (int64_t k = 0; k < depth; k += 2) {
    const uint16_t* pairs = b + k * n;
    float* first = panel + k * kBlockColumns;
    float* second = first + kBlockColumns;
#pragma omp simd
    for (int64_t c = 0; c < kBlockColumns; ++c) {
      first[c] = load(pairs + 2 * c);
      second[c] = load(pairs + 2 * c + 1);
    }
  }
}

/// A left operand in fp32: as it is, or converted.
struct LeftBlock {
  const float* values;
  int64_t stride;
};
inline LeftBlock left_block(const float* a, int64_t stride, int64_t /*rows*/, int64_t /*depth*/,
                            float* /*room*/) {
  return {a, stride};
}
inline LeftBlock left_block(const uint16_t* a, int64_t stride, int64_t rows, int64_t depth,
                            float* room) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t k = 0; k < depth; ++k) room[r * kBlockDepth + k] = load(a + r * stride + k);
  }
  return {room, kBlockDepth};
}

/// c [m, n] (+)= a [m, k] b [k, n]: row stride of a `a_stride`, b and c contiguous, n a multiple
/// of 16. For bf16, k is even and b in VNNI layout, [k / 2][n][2].
template <typename T>
void multiply_block(int64_t m, int64_t n, int64_t k, bool add, const T* a, int64_t a_stride,
                    const T* b, float* c) {
  constexpr int64_t kMostRows = 64;  // converted at a time: 64 KiB
  constexpr bool kConverts = sizeof(T) < sizeof(float);
  alignas(64) float panel[kBlockDepth * kBlockColumns];
  float room[kConverts ? kMostRows * kBlockDepth : 1];
  for (int64_t row0 = 0; row0 < m; row0 += kMostRows) {
    const int64_t rows = m - row0 < kMostRows ? m - row0 : kMostRows;
    for (int64_t k0 = 0; k0 < k; k0 += kBlockDepth) {
      const int64_t depth = k - k0 < kBlockDepth ? k - k0 : kBlockDepth;
      const bool adds = add || k0 > 0;
      const LeftBlock left = left_block(a + row0 * a_stride + k0, a_stride, rows, depth, room);
      for (int64_t column = 0; column < n; column += kBlockColumns) {
        unpack_panel(b + k0 * n + column * (kConverts ? 2 : 1), n, depth, panel);
        float* to = c + row0 * n + column;
        int64_t row = 0;
        for (; row + kBlockRows <= rows; row += kBlockRows)
          multiply_rows<kBlockRows>(left.values + row * left.stride, left.stride, panel, depth,
                                    adds, to + row * n, n);
        multiply_last_rows<kBlockRows - 1>(rows - row, left.values + row * left.stride, left.stride,
                                           panel, depth, adds, to + row * n, n);
      }
    }
  }
}
#endif
