#include "sftrun/core/new_directory.h"

#include <fmt/format.h>

#include "sftrun/core/error.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

/// "models/mine.unfinished" of models/mine and of models/mine/.
fs::path beside(const fs::path& target, const char* ending) {
  fs::path path = target.has_filename() ? target : target.parent_path();
  return path += ending;
}

}  // namespace

void write_new_directory(const fs::path& target, const std::string& what,
                         const std::function<void(const fs::path&)>& write, Existing existing) {
  const fs::path temporary = beside(target, ".unfinished"), replaced = beside(target, ".replaced");
  std::error_code code;
  fs::remove_all(temporary, code);
  try {
    write(temporary);
  } catch (...) {
    fs::remove_all(temporary, code);
    throw;
  }
  fs::remove(target, code);  // empty or absent
  if (existing == Existing::kReplace && fs::exists(target, code)) {
    fs::remove_all(replaced, code);  // of an earlier, interrupted one
    fs::rename(target, replaced, code);
  }
  fs::rename(temporary, target, code);
  if (code) {
    throw DeviceError(fmt::format("cannot put {} into place: {}", what, code.message()),
                      target.string());
  }
  if (existing == Existing::kReplace) fs::remove_all(replaced, code);
}

}  // namespace sftrun
