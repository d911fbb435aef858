#pragma once

#include <cstddef>

namespace sftrun {

/// Whether each row of a table stands at the place of its enumerator, so that the enumerator is the
/// index.   @param key the member that holds it
template <class Rows, class Row, class Enum>
constexpr bool are_in_order(const Rows& rows, Enum Row::*key) {
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].*key != static_cast<Enum>(i)) return false;
  return true;
}

}  // namespace sftrun
