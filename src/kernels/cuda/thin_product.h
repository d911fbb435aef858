#pragma once

#include "packed.h"

/// Products of few rows (generation) with a matrix in fewer bits: x w^T. A block of threads takes
/// some of w's rows, and a thread every so many groups of eight values of these, so that the
/// tokens' values are read side by side; what a group unpacks to stays in registers and is
/// multiplied with each token's values. Compiled for the host as well, so that tests can walk the
/// threads.
namespace sftrun::kernels::cuda {

inline constexpr int kThinThreads = 128;
/// Tokens whose sums a thread has at once; of more, w is read again.
inline constexpr int kThinTokens = 8;
/// Two readings of w are a byte a value; unpacked once for tensor cores it is half a byte read, two
/// written and two read again. Beyond, these sums would take longer than that.
inline constexpr int64_t kMostThinTokens = 16;

/// Groups of a row that a block of threads decodes at a time.
inline constexpr int kThinGroups = 4 * kThinThreads;

/// The first of w's rows and of the tokens that a block computes, and how many tokens there are.
struct ThinTile {
  int64_t row, token, tokens;
};

/// w's bytes where they are; the kernel's own copies them into shared memory first.
template <typename View>
struct BytesInPlace {
  const View& w;
  SFTRUN_HOST_DEVICE void load(int64_t /*row*/, int64_t /*group*/) {}
  SFTRUN_HOST_DEVICE const uint8_t* at(int /*r*/, int64_t row, int64_t group) const {
    return w.bytes() + row * w.row_bytes() + View::bytes_before(group);
  }
};

/// A row of w, or beyond them the last.
template <typename View>
SFTRUN_HOST_DEVICE int64_t thin_row(const View& w, int64_t row) {
  return row < w.rows ? row : w.rows - 1;
}

/// A thread's part of sums[r][t] = w[tile.row + r] . x[tile.token + t]. Sums beyond w's rows or the
/// tokens are of the last. Their order depends on w's columns alone.
/// @param bytes bytes.load(row, group) by all threads, before bytes.at(r, row + r, g) of the groups
/// [group, group + kThinGroups) of the tile's rows
/// @param x x(token, k, out) writes values [k, k + 8) of a token
template <int kTokens, typename View, typename Bytes, typename Rows>
SFTRUN_HOST_DEVICE void add_thread_products(const View& w, Bytes&& bytes, const Rows& x,
                                            const ThinTile& tile, int thread,
                                            float (&sums)[View::kRowsAtOnce][kTokens]) {
  constexpr int kRows = View::kRowsAtOnce;
  const int64_t groups = w.columns / kGroup;
  for (int64_t first = 0; first < groups; first += kThinGroups) {
    bytes.load(tile.row, first);
    const int64_t end = first + kThinGroups < groups ? first + kThinGroups : groups;
    for (int64_t group = first + thread; group < end; group += kThinThreads) {
      float values[kRows][kGroup], factors[kRows];
      for (int r = 0; r < kRows; ++r) {
        const int64_t row = thin_row(w, tile.row + r);
        factors[r] = w.decode(bytes.at(r, row, group), row, group, values[r]);
      }
      for (int t = 0; t < kTokens; ++t) {
        const int64_t token = tile.token + t < tile.tokens ? tile.token + t : tile.tokens - 1;
        float of_x[kGroup], dots[kRows] = {};
        x(token, group * kGroup, of_x);
        for (int r = 0; r < kRows; ++r)
          for (int i = 0; i < kGroup; ++i) dots[r] = fmaf(of_x[i], values[r][i], dots[r]);
        for (int r = 0; r < kRows; ++r) sums[r][t] = fmaf(dots[r], factors[r], sums[r][t]);
      }
    }
  }
}

}  // namespace sftrun::kernels::cuda
