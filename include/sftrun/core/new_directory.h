#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sftrun {

class AtomicFile;

/// Of names of files and folders that take their own name once they are complete.
inline constexpr std::string_view kUnfinishedPrefix = ".unfinished-";

/// The right to write an output: a lock on the file "NAME.lock" beside it, which is removed at the
/// end. Nothing is locked where that file cannot be made, and on file systems without locks.
class OutputLock {
 public:
  /// @param what the output is, for errors: "the merged model"
  /// @throws ConfigError if another command writes it now
  OutputLock(const std::filesystem::path& output, const std::string& what);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  bool try_lock(const std::string& what);

  std::filesystem::path path_;
  int fd_ = -1;
};

/// What becomes of a directory or file that has the target's name already.
enum class Existing : uint8_t {
  kMustBeEmpty,
  kReplace,  ///< it is removed once the new one has its name
};
constexpr Existing existing_with(bool overwrite) {
  return overwrite ? Existing::kReplace : Existing::kMustBeEmpty;
}

/// A directory that is there as a whole or not at all: `write` makes and fills one beside it,
/// which then takes its name. Meanwhile other commands cannot write it (OutputLock).
/// @param target absent or empty, unless it is to be replaced
/// @param what it is, for errors: "the merged model"
/// @throws DeviceError naming the target, also if another command has written it since it was looked
/// at; ConfigError if one writes it now
void write_new_directory(const std::filesystem::path& target, const std::string& what,
                         const std::function<void(const std::filesystem::path&)>& write,
                         Existing existing = Existing::kMustBeEmpty);

/// The same for one file. Its directory is made. @param write must give it its name at the end
void write_new_file(const std::filesystem::path& target, const std::string& what,
                    const std::function<void(const std::filesystem::path&)>& write,
                    Existing existing = Existing::kMustBeEmpty);

/// One of `write_new_files`.
struct NewFile {
  std::filesystem::path target;
  std::function<void(AtomicFile&)> write;  ///< fills it, and does not commit
};

/// Files that get their names together, once all are written; none does after a failure.
/// @throws as `write_new_directory`; DeviceError before anything is written if the name of one is that
/// of a directory or a special file
void write_new_files(const std::vector<NewFile>& files, const std::string& what,
                     Existing existing = Existing::kMustBeEmpty);

}  // namespace sftrun
