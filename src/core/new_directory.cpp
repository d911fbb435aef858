#include "sftrun/core/new_directory.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "sftrun/core/error.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

/// With the id of the process that writes.
const std::string kUnfinishedOf = ".unfinished-";

/// "models/mine.unfinished" of models/mine and of models/mine/.
fs::path beside(const fs::path& target, const std::string& ending) {
  fs::path path = target.has_filename() ? target : target.parent_path();
  return path += ending;
}

/// Removes what processes that no longer exist have left behind.
void remove_leftovers_of(const fs::path& target) {
  const fs::path beginning = beside(target, kUnfinishedOf);
  const std::string prefix = beginning.filename().string();
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(fs::absolute(beginning).parent_path(), code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string digits = name.substr(prefix.size());
    if (digits.empty() || digits.size() > 9 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const bool is_gone = ::kill(std::stoi(digits), 0) != 0 && errno == ESRCH;
    if (is_gone) fs::remove_all(entry.path(), code);
  }
}

}  // namespace

void write_new_directory(const fs::path& target, const std::string& what,
                         const std::function<void(const fs::path&)>& write, Existing existing) {
  remove_leftovers_of(target);
  const fs::path temporary = beside(target, kUnfinishedOf + std::to_string(::getpid())),
                 replaced = beside(target, ".replaced");
  std::error_code code;
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
