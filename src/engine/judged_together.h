#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace sftrun::engine {

/// Pieces of a list as programs and servers get them: so many answers together as `sftrun reward` has.
template <class T>
std::vector<std::span<T>> judged_together(std::span<T> all) {
  constexpr size_t kTogether = 64;
  std::vector<std::span<T>> pieces;
  for (size_t first = 0; first < all.size(); first += kTogether)
    pieces.push_back(all.subspan(first, std::min(kTogether, all.size() - first)));
  return pieces;
}

}  // namespace sftrun::engine
