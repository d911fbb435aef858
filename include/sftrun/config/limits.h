#pragma once

#include <limits>
#include <string>
#include <utility>

/// What a field says of its values beside their type.
namespace sftrun::config {

/// What a field takes beyond its type, and how docs show it while it is not set.
struct Limits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  ///< the bound itself is out
  bool is_path = false;
  std::string none = {};   ///< of a path: its value where the configuration says that there is none
  std::string unset = {};  ///< the default in words, where the value implied depends on others

  Limits otherwise(std::string words) const {
    Limits copy = *this;
    copy.unset = std::move(words);
    return copy;
  }
};
/// Whether a run may resume a checkpoint that was written with another value of a field.
enum class OnResume {
  /// No: it affects the results (part of the run's identity). A checkpoint that was written before
  /// the field existed is resumed with the default: the default of a new field must be what the
  /// program did before.
  kSame,
  kLength,    ///< the same, unless the run's length may change (train/run_length.h)
  kCompared,  ///< compared separately: the content of files, the backend (train/identity.h)
  kAny,       ///< yes: it does not affect the results (of the batch sizes only the global one does)
};

}  // namespace sftrun::config
