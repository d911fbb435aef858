#pragma once

#include <cstddef>
#include <cstdint>

namespace sftrun {

/// What a reader spends on a file of somebody else's before it refuses it: far beyond what honest
/// files hold, and less than a machine has. Readers take one, so that tests can set others.
struct ReadLimits {
  size_t record_bytes = size_t{256} << 20;  ///< of one line, one row or one element
  size_t blank_bytes = size_t{64} << 20;    ///< between two records
  size_t columns = 10'000;                  ///< of a table
  /// Comparisons of keys while a JSON text is read: k for the k-th key of an object, which the
  /// parser compares with those before it.
  uint64_t key_steps = 200'000'000;
  uint64_t keys = 500'000;       ///< of one JSON object, however it keeps them
  uint64_t values = 20'000'000;  ///< of one JSON text
  size_t growth = 100;           ///< a text that a normalizer makes, in lengths of the one it gets
  size_t grown_bytes = 4096;     ///< and what a short one may become all the same
  size_t problems = 20;          ///< of one file, told one by one; the others are counted
};

}  // namespace sftrun
