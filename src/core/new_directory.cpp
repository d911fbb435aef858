#include "sftrun/core/new_directory.h"

#include <fmt/format.h>

#include "sftrun/core/error.h"

namespace sftrun {
namespace fs = std::filesystem;

void write_new_directory(const fs::path& target, const std::string& what,
                         const std::function<void(const fs::path&)>& write) {
  fs::path temporary = target;
  temporary += ".unfinished";
  std::error_code code;
  fs::remove_all(temporary, code);
  try {
    write(temporary);
  } catch (...) {
    fs::remove_all(temporary, code);
    throw;
  }
  fs::remove(target, code);  // empty or absent
  fs::rename(temporary, target, code);
  if (code) {
    throw DeviceError(fmt::format("cannot put {} into place: {}", what, code.message()),
                      target.string());
  }
}

}  // namespace sftrun
