#include "sftrun/kernels/cuda_archs.h"

#include <algorithm>
#include <charconv>

namespace sftrun::kernels {
namespace {

/// Whether one entry, such as "90a-real", runs on this compute capability.
bool entry_runs_on(std::string_view entry, int major, int minor) {
  int version = 0;
  const char* end = entry.data() + entry.size();
  const auto number = std::from_chars(entry.data(), end, version);
  if (number.ec != std::errc{}) return false;
  const int card = 10 * major + minor;
  const std::string_view suffix(number.ptr, static_cast<size_t>(end - number.ptr));
  if (suffix.starts_with('a')) return card == version;
  const bool machine_code = suffix != "-virtual" && version / 10 == major && card >= version;
  const bool ptx = suffix != "-real" && card >= version;
  return machine_code || ptx;
}

}  // namespace

bool cuda_code_runs_on(std::string_view built, int major, int minor) {
  while (!built.empty()) {
    const size_t end = std::min(built.find_first_of(";,"), built.size());
    if (entry_runs_on(built.substr(0, end), major, minor)) return true;
    built.remove_prefix(std::min(end + 1, built.size()));
  }
  return false;
}

}  // namespace sftrun::kernels
