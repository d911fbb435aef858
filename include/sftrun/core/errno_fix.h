#pragma once

#include <cerrno>
#include <string>

/// What a user can do about errors of the operating system.
namespace sftrun {

/// If the process, or the machine, has no descriptors left; "" for other errors.
inline std::string fix_for_descriptors(int error) {
  if (error == EMFILE) return "raise the limit of open files (ulimit -n)";
  if (error == ENFILE) return "raise the machine's limit of open files (sysctl fs.file-max)";
  return {};
}

/// If a file cannot be written; "" for errors about which nothing is known.
inline std::string fix_for_write(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free disk space, or write elsewhere";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a directory you may write to";
    case EFBIG:
      return "raise the limit on the size of files (ulimit -f), or choose another file system";
    default:
      return fix_for_descriptors(error);
  }
}

}  // namespace sftrun
