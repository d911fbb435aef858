#pragma once

#include <cstddef>
#include <cstdint>

namespace sftrun {

/// Limits on the size of untrusted files: far above real files, but below a machine's resources.
/// Readers take them as a parameter so that tests can lower them.
struct ReadLimits {
  size_t record_bytes = size_t{256} << 20;  ///< of one line, row or element
  size_t blank_bytes = size_t{64} << 20;    ///< blank space between two records
  size_t columns = 10'000;                  ///< of a table
  /// Comparisons of keys while a JSON text is parsed: the parser compares the k-th key of an object
  /// with the k - 1 earlier ones.
  uint64_t key_steps = 200'000'000;
  uint64_t keys = 500'000;       ///< of one JSON object
  uint64_t values = 20'000'000;  ///< of one JSON text
  size_t growth = 100;           ///< output length of a normalizer relative to its input
  size_t grown_bytes = 4096;     ///< output length that is allowed for short inputs, too
  size_t problems = 20;  ///< of one file that are reported one by one; further ones are counted
};

}  // namespace sftrun
