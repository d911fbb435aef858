#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "sftrun/core/input_file.h"

/// The files of images and features that records were made from: what tells later whether they have changed.
namespace sftrun::data {

/// What stat says of a file.
struct MediaStamp {
  int64_t size = -1;     ///< in bytes; -1: there is no such regular file
  int64_t mtime_ns = 0;  ///< since the epoch
  bool is_image = true;  ///< else features
  bool operator==(const MediaStamp&) const = default;
};

/// Each distinct file that records name, also of records that are left out. Thread-safe.
class MediaStamps {
 public:
  /// Looks at a file that was not noted yet. Call it before the file is read: a change in between is then seen as one.
  /// @return whether it is new
  bool note(const std::string& path, bool is_image);
  /// Adds to the fingerprint of a file that was noted: its size, beginning, middle and end.
  /// @param written the path as the record has it, so that moved data have the same fingerprint
  /// @throws DataError naming the file if it became shorter since it was opened, or cannot be read
  void note_contents(const std::string& written, const InputFile& file);

  /// For `find_media_change`; empty: no record names a file.
  std::string packed() const;
  /// Of the contents of files that exist; empty: there are none.
  std::string fingerprint() const;

 private:
  struct Noted {
    MediaStamp stamp;
    std::string written, contents;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Noted> files_;
};

/// Compares sizes and times with those of `MediaStamps::packed`: of all files up to `most`, else of an even sample of so many. Threads wait
/// for the disk, so they may be more than the processors.
/// @return "3 of 200 images have changed since they were tokenized (first: a.png)"; nullopt: no difference
/// @throws DataError if `packed` is damaged
std::optional<std::string> find_media_change(std::string_view packed, int64_t most = 100'000);

}  // namespace sftrun::data
