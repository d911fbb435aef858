#include "temporary_folder.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>

#include "sftrun/core/error.h"

namespace sftrun::app {

TemporaryFolder::TemporaryFolder(const std::string& purpose) {
  std::error_code code;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(code);
  std::string name = (parent / fmt::format("sftrun-{}-XXXXXX", purpose)).string();
  if (code || ::mkdtemp(name.data()) == nullptr) {
    throw DeviceError(fmt::format("cannot make a temporary folder: {}",
                                  code ? code.message() : std::strerror(errno)),
                      name, "set TMPDIR to a directory that can be written");
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  if (is_kept_) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace sftrun::app
