#pragma once

#include "packed.h"

/// Products of few rows (generation) with a matrix in fewer bits: x w^T. A block of threads takes
/// some of w's rows, and a thread every so many groups of these; what a group unpacks to stays in
/// registers and is multiplied with each token's values. Compiled for the host as well, so that
/// tests can walk the threads.
namespace sftrun::kernels::cuda {

inline constexpr int kThinThreads = 128;
/// Tokens whose sums a thread has at once; of more, w is read again.
inline constexpr int kThinTokens = 8;
/// Two readings of w are a byte a value; unpacked once for tensor cores it is half a byte read, two
/// written and two read again. Beyond, these sums would take longer than that.
inline constexpr int64_t kMostThinTokens = 16;

/// The first of w's rows and of the tokens that a block computes, and how many tokens there are.
struct ThinTile {
  int64_t row, token, tokens;
};

/// A thread's part of sums[r][t] = w[tile.row + r] . x[tile.token + t]. Sums beyond w's rows or the
/// tokens are of the last. Their order depends on w's columns alone.
/// @param x x(token, k, out) writes values [k, k + 8) of a token
template <int kTokens, typename View, typename Rows>
SFTRUN_HOST_DEVICE void add_thread_products(const View& w, const Rows& x, const ThinTile& tile,
                                            int thread, float (&sums)[View::kRowsAtOnce][kTokens]) {
  constexpr int kRows = View::kRowsAtOnce, kEight = 8;
  const int64_t groups = w.columns / View::kGroup;
  for (int64_t group = thread; group < groups; group += kThinThreads) {
    float values[kRows][View::kGroup], factors[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = tile.row + r < w.rows ? tile.row + r : w.rows - 1;
      factors[r] = w.decode(row, group, values[r]);
    }
    for (int t = 0; t < kTokens; ++t) {
      const int64_t token = tile.token + t < tile.tokens ? tile.token + t : tile.tokens - 1;
      float dots[kRows] = {};
      for (int part = 0; part < View::kGroup; part += kEight) {
        float of_x[kEight];
        x(token, group * View::kGroup + part, of_x);
        for (int r = 0; r < kRows; ++r)
          for (int i = 0; i < kEight; ++i) dots[r] = fmaf(of_x[i], values[r][part + i], dots[r]);
      }
      for (int r = 0; r < kRows; ++r) sums[r][t] = fmaf(dots[r], factors[r], sums[r][t]);
    }
  }
}

}  // namespace sftrun::kernels::cuda
