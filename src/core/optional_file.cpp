#include "sftrun/core/optional_file.h"

#include <fmt/format.h>

#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"

namespace sftrun {
namespace fs = std::filesystem;

bool has_optional_file(const fs::path& path) {
  if (leads_to_file(path)) return true;
  if (!has_entry(path)) return false;
  std::error_code code;
  const fs::path target = fs::read_symlink(path, code);
  if (code) return leads_to_file(path);  // no link: written or removed just now
  const bool is_circle =
      !fs::exists(path, code) && code == std::errc::too_many_symbolic_link_levels;
  throw DataError(
      fmt::format("{} symbolic link to {}", is_circle ? "a circular" : "a broken", target.string()),
      path.string(), "download or copy the file again, or remove the link");
}

}  // namespace sftrun
