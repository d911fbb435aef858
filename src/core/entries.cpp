#include "sftrun/core/entries.h"

#include <fmt/format.h>

#include <string>
#include <system_error>

#include "sftrun/core/errno_fix.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

std::error_code code_of_name(const fs::path& path) {
  return can_be_path(path) ? std::error_code() : make_error_code(std::errc::invalid_argument);
}

void throw_if(const std::error_code& code, const char* what, const fs::path& path) {
  if (code)
    throw DeviceError(fmt::format("cannot {}: {}", what, code.message()), path.string(),
                      fix_for_write(code.value()));
}

std::vector<fs::path> read_entries(const fs::path& folder, std::error_code& code) {
  std::vector<fs::path> entries;
  code = code_of_name(folder);
  if (code) return entries;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code))
    entries.push_back(at->path());
  return entries;
}

}  // namespace

std::vector<fs::path> readable_entries_of(const fs::path& folder) {
  std::error_code ignored;
  return read_entries(folder, ignored);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> entries = read_entries(folder, code);
  if (code)
    throw DataError(fmt::format("cannot read the folder: {}", code.message()), folder.string());
  return entries;
}

uint64_t bytes_of_file(const fs::path& file) {
  std::error_code code = code_of_name(file);
  const uint64_t bytes = code ? 0 : fs::file_size(file, code);
  if (code) throw DataError(fmt::format("cannot read file: {}", code.message()), file.string());
  return bytes;
}

void remove_entry(const fs::path& path) {
  std::error_code code = code_of_name(path);
  if (!code) fs::remove(path, code);
  throw_if(code, "remove", path);
}

void move_entry(const fs::path& from, const fs::path& to) {
  std::error_code code = code_of_name(to);
  if (!code) fs::rename(from, to, code);
  throw_if(code, "rename", from);
}

fs::path folder_for_temporaries() {
  std::error_code code;
  const fs::path folder = fs::temp_directory_path(code);
  if (!code) return folder;
  throw DeviceError(fmt::format("there is no folder for temporary files: {}", code.message()),
                    "TMPDIR in the environment", "set TMPDIR to a directory that can be written");
}

}  // namespace sftrun
