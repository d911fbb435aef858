#include "sftrun/core/new_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <string>
#include <utility>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

/// "models/mine.unfinished" of models/mine and of models/mine/.
fs::path beside(const fs::path& target, const std::string& ending) {
  fs::path path = target.has_filename() ? target : target.parent_path();
  return path += ending;
}

/// Removes what processes that no longer exist have left behind.
void remove_leftovers_of(const fs::path& target) {
  const fs::path beginning = beside(target, std::string(kUnfinishedPrefix));
  const std::string prefix = beginning.filename().string();
  std::error_code code;
  for (const fs::path& entry : readable_entries_of(absolute_path(beginning).parent_path())) {
    const std::string name = entry.filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string digits = name.substr(prefix.size());
    if (digits.empty() || digits.size() > 9 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const bool is_gone = ::kill(std::stoi(digits), 0) != 0 && errno == ESRCH;
    if (is_gone) fs::remove_all(entry, code);
  }
}

}  // namespace

OutputLock::OutputLock(const fs::path& output, const std::string& what)
    : path_(beside(output, ".lock")) {
  while (!try_lock(what)) {
  }
}

/// @return false: the file was removed between its opening and the lock
bool OutputLock::try_lock(const std::string& what) {
  constexpr mode_t kAsUmaskSays = 0666;
  fd_ = open_file(path_, O_RDWR | O_CREAT | O_NOFOLLOW, kAsUmaskSays).fd;
  if (fd_ < 0) return true;  // the output itself cannot be written either, and says why
  const bool is_locked = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
  if (!is_locked && errno == EWOULDBLOCK) {
    ::close(std::exchange(fd_, -1));
    throw ConfigError(fmt::format("another command is writing {} now", what), path_.string(),
                      "wait for its end, or name another output");
  }
  struct stat held {};
  if (!is_locked || (::fstat(fd_, &held) == 0 && held.st_nlink > 0)) return true;
  ::close(std::exchange(fd_, -1));
  return false;
}

OutputLock::~OutputLock() {
  if (fd_ < 0) return;
  std::error_code ignored;
  fs::remove(path_, ignored);  // while it is locked
  ::close(fd_);
}

namespace {

[[noreturn]] void fail_because_it_exists(const fs::path& target, const std::string& what) {
  throw DeviceError(fmt::format("cannot put {} into place: it exists", what), target.string(),
                    "another command has written it: name another output");
}

}  // namespace

void write_new_file(const fs::path& target, const std::string& what,
                    const std::function<void(const fs::path&)>& write, Existing existing) {
  const fs::path file = absolute_path(target);
  make_directories(file.parent_path());
  const OutputLock lock(file, what);
  if (existing == Existing::kMustBeEmpty && has_entry(file)) fail_because_it_exists(target, what);
  write(file);
}

void write_new_files(const std::vector<NewFile>& files, const std::string& what,
                     Existing existing) {
  std::deque<OutputLock> locks;  // neither locks nor files can be moved
  std::deque<AtomicFile> written;
  for (const NewFile& file : files) {
    const fs::path target = absolute_path(file.target);
    require_place_for_file(file.target);
    make_directories(target.parent_path());
    locks.emplace_back(target, what);
    if (existing == Existing::kMustBeEmpty && has_entry(target))
      fail_because_it_exists(file.target, what);
    written.emplace_back(file.target);
  }
  for (size_t i = 0; i < files.size(); ++i) files[i].write(written[i]);
  for (AtomicFile& file : written) file.sync();
  for (const NewFile& file : files) require_place_for_file(file.target);  // as it is now
  for (AtomicFile& file : written) file.commit();
}

void write_new_directory(const fs::path& target, const std::string& what,
                         const std::function<void(const fs::path&)>& write, Existing existing) {
  std::error_code code;
  make_directories(absolute_path(beside(target, "")).parent_path());
  const OutputLock lock(target, what);
  const bool is_new = !fs::exists(target, code) || fs::is_empty(target, code);
  if (existing == Existing::kMustBeEmpty && !is_new) fail_because_it_exists(target, what);
  remove_leftovers_of(target);
  const fs::path temporary = beside(target, fmt::format("{}{}", kUnfinishedPrefix, ::getpid())),
                 replaced = beside(target, ".replaced");
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
    const std::string why = code.message();
    fs::remove_all(temporary, code);
    throw DeviceError(fmt::format("cannot put {} into place: {}", what, why), target.string());
  }
  if (existing == Existing::kReplace) fs::remove_all(replaced, code);
}

}  // namespace sftrun
