// Products of blocks that stay in the caches, for processors on which LibTorch's brgemm is not
// fast. Each sum is formed in an order that depends only on the depth: the products of up to
// kBlockDepth values one after the other, then the sums of these. So a row's results do not depend
// on the other rows or on the number of threads.

#ifdef __AVX2__
constexpr int64_t kBlockDepth = 256;  // its panel of 16 columns takes half of an L1 cache of 32 KiB
constexpr int64_t kBlockColumns = 16;
constexpr int64_t kConvertedRows = 64;  // at a time, of the left operand: 64 KiB
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

/// Rows [0, rows) and columns [0, depth) of a left operand, in fp32.
struct LeftPart {
  const float* first;
  int64_t stride, rows, depth;
};
inline LeftPart left_part(const float* a, int64_t stride, int64_t rows, int64_t depth,
                          float* /*room*/) {
  return {a, stride, rows, depth};
}
inline LeftPart left_part(const uint16_t* a, int64_t stride, int64_t rows, int64_t depth,
                          float* room) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t k = 0; k < depth; ++k) room[r * kBlockDepth + k] = load(a + r * stride + k);
  }
  return {room, kBlockDepth, rows, depth};
}

/// Calls body(part, first row, first depth) for parts of a [m, k] of at most `max_depth`.
template <typename T, typename Body>
void for_left_parts(int64_t m, int64_t k, int64_t max_depth, const T* a, int64_t a_stride,
                    const Body& body) {
  float room[sizeof(T) < sizeof(float) ? kConvertedRows * kBlockDepth : 1];
  for (int64_t row = 0; row < m; row += kConvertedRows) {
    const int64_t rows = m - row < kConvertedRows ? m - row : kConvertedRows;
    for (int64_t k0 = 0; k0 < k; k0 += max_depth) {
      const int64_t depth = k - k0 < max_depth ? k - k0 : max_depth;
      body(left_part(a + row * a_stride + k0, a_stride, rows, depth, room), row, k0);
    }
  }
}

/// c [rows, 16] (+)= left panel [depth, 16]
inline void multiply_panel(const LeftPart& left, const float* panel, bool add, float* c,
                           int64_t c_stride) {
  int64_t row = 0;
  for (; row + kBlockRows <= left.rows; row += kBlockRows)
    multiply_rows<kBlockRows>(left.first + row * left.stride, left.stride, panel, left.depth, add,
                              c + row * c_stride, c_stride);
  multiply_last_rows<kBlockRows - 1>(left.rows - row, left.first + row * left.stride, left.stride,
                                     panel, left.depth, add, c + row * c_stride, c_stride);
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

/// A panel [depth, 16] of a transposed w, row stride `stride`, in fp32.
inline void transpose_to_panel(const float* w, int64_t stride, int64_t valid, int64_t depth,
                               float* panel) {
  pack_panel_transposed(w, stride, valid, kBlockColumns, depth, panel);
}
inline void transpose_to_panel(const uint16_t* w, int64_t stride, int64_t valid, int64_t depth,
                               float* panel) {
  alignas(64) uint16_t pairs[kBlockDepth * kBlockColumns];
  pack_panel_transposed(w, stride, valid, kBlockColumns, depth, pairs);
  unpack_panel(pairs, kBlockColumns, depth, panel);
}

/// c [m, n] (+)= a [m, k] b [k, n]: row stride of a `a_stride`, b and c contiguous, n a multiple of
/// 16, k > 0. For bf16, k is even and b in VNNI layout, [k / 2][n][2].
template <typename T>
void multiply_block(int64_t m, int64_t n, int64_t k, bool add, const T* a, int64_t a_stride,
                    const T* b, float* c) {
  constexpr int64_t kRowsInOne = sizeof(float) / sizeof(T);  // of b
  alignas(64) float panel[kBlockDepth * kBlockColumns];
  for_left_parts(m, k, kBlockDepth, a, a_stride,
                 [&](const LeftPart& left, int64_t row, int64_t k0) {
                   for (int64_t column = 0; column < n; column += kBlockColumns) {
                     unpack_panel(b + k0 * n + column * kRowsInOne, n, left.depth, panel);
                     multiply_panel(left, panel, add || k0 > 0, c + row * n + column, n);
                   }
                 });
}

/// Panels [depth, 16] of w [depth, columns], in fp32; columns past the last are 0. Rows of w are
/// read once from end to end.
template <typename T>
void split_rows(const T* w, int64_t stride, int64_t depth, int64_t columns, float* panels) {
  const int64_t whole = columns / kBlockColumns * kBlockColumns, size = depth * kBlockColumns;
  for (int64_t k = 0; k < depth; ++k) {
    const T* row = w + k * stride;
    float* to = panels + k * kBlockColumns;
    for (int64_t c = 0; c < whole; c += kBlockColumns, to += size)
      store_sixteen(to, load_sixteen(row + c));
    if (whole == columns) continue;
    for (int64_t c = 0; c < kBlockColumns; ++c)
      to[c] = whole + c < columns ? load(row + whole + c) : 0.0F;
  }
}

/// c [m, columns] (+)= a [m, k] w [k, columns] for few rows, which do not pay for packing w in
/// VNNI layout first. Row strides `a_stride`, `w_stride`, `c_stride`; c has room for whole panels of
/// 16 columns.
template <typename T>
void multiply_few(int64_t m, int64_t columns, int64_t k, bool add, const T* a, int64_t a_stride,
                  const T* w, int64_t w_stride, float* c, int64_t c_stride) {
  constexpr int64_t kDepth = 64, kColumns = 256;  // panels of 64 KiB
  alignas(64) float panels[kDepth * kColumns];
  for_left_parts(m, k, kDepth, a, a_stride, [&](const LeftPart& left, int64_t row, int64_t k0) {
    for (int64_t first = 0; first < columns; first += kColumns) {
      const int64_t count = columns - first < kColumns ? columns - first : kColumns;
      split_rows(w + k0 * w_stride + first, w_stride, left.depth, count, panels);
      for (int64_t column = 0; column < count; column += kBlockColumns)
        multiply_panel(left, panels + column * left.depth, add || k0 > 0,
                       c + row * c_stride + first + column, c_stride);
    }
  });
}

/// The same for a transposed w [columns, k]; for bf16, k is even.
template <typename T>
void multiply_few_transposed(int64_t m, int64_t columns, int64_t k, bool add, const T* a,
                             int64_t a_stride, const T* w, int64_t w_stride, float* c,
                             int64_t c_stride) {
  alignas(64) float panel[kBlockDepth * kBlockColumns];
  for_left_parts(
      m, k, kBlockDepth, a, a_stride, [&](const LeftPart& left, int64_t row, int64_t k0) {
        for (int64_t column = 0; column < columns; column += kBlockColumns) {
          const int64_t valid = columns - column < kBlockColumns ? columns - column : kBlockColumns;
          transpose_to_panel(w + column * w_stride + k0, w_stride, valid, left.depth, panel);
          multiply_panel(left, panel, add || k0 > 0, c + row * c_stride + column, c_stride);
        }
      });
}
#endif
