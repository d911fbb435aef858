#pragma once

#include "packed.h"
#include "sftrun/kernels/thin_tokens.h"

/// x w^T for few tokens (generation) and a quantised w. A block processes some rows of w; each
/// thread decodes every kThinThreads-th group of eight values of these rows, so that reads of x are
/// coalesced, and multiplies the decoded values in registers with each token. Also compiled for the
/// host, for tests.
namespace sftrun::kernels::cuda {

inline constexpr int kThinThreads = 128;
/// Number of tokens whose sums a thread accumulates at once; for more tokens w is read again.
inline constexpr int kThinTokens = 8;

/// Number of groups of a row that a block decodes per iteration.
inline constexpr int kThinGroups = 4 * kThinThreads;

/// First row of w and first token of a block, and the total number of tokens.
struct ThinTile {
  int64_t row, token, tokens;
};

/// w's bytes read in place; the CUDA kernel copies them to shared memory first.
template <typename View>
struct BytesInPlace {
  const View& w;
  SFTRUN_HOST_DEVICE void load(int64_t /*row*/, int64_t /*group*/) {}
  SFTRUN_HOST_DEVICE const uint8_t* at(int /*r*/, int64_t row, int64_t group) const {
    return w.bytes() + row * w.row_bytes() + View::bytes_before(group);
  }
};

/// `row`, clamped to the last row of w.
template <typename View>
SFTRUN_HOST_DEVICE int64_t thin_row(const View& w, int64_t row) {
  return row < w.rows ? row : w.rows - 1;
}

/// A thread's part of sums[r][t] = w[tile.row + r] . x[tile.token + t]. Rows and tokens out of
/// range repeat the last one. The order of summation depends only on the columns of w.
/// @param bytes all threads call bytes.load(row, group) before bytes.at(r, row + r, g) for the
/// groups g in [group, group + kThinGroups) of the tile's rows
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
      float values[kRows][kGroup], scales[kRows];
      for (int r = 0; r < kRows; ++r) {
        const int64_t row = thin_row(w, tile.row + r);
        scales[r] = w.decode(bytes.at(r, row, group), row, group, values[r]);
      }
      for (int t = 0; t < kTokens; ++t) {
        const int64_t token = tile.token + t < tile.tokens ? tile.token + t : tile.tokens - 1;
        float of_x[kGroup], dots[kRows] = {};
        x(token, group * kGroup, of_x);
        for (int r = 0; r < kRows; ++r)
          for (int i = 0; i < kGroup; ++i) dots[r] = fmaf(of_x[i], values[r][i], dots[r]);
        for (int r = 0; r < kRows; ++r) sums[r][t] = fmaf(dots[r], scales[r], sums[r][t]);
      }
    }
  }
}

}  // namespace sftrun::kernels::cuda
