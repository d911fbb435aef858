#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/core/file.h"

namespace sftrun::app {

/// The records that `sftrun reward` has judged so far, in a file beside its output (`OUTPUT.part`): a
/// line that says of what they are, and a line for each record, in order. A command that was stopped
/// finds them again.
class JudgedPart {
 public:
  /// Keeps the complete lines of an earlier command with the same key; begins anew after another one.
  /// @param key of the records and of what judges them
  /// @throws DeviceError
  JudgedPart(const std::string& output, const std::string& key);

  const std::filesystem::path& path() const { return path_; }
  /// What an earlier command has written, without line ends.
  const std::vector<std::string>& lines() const { return lines_; }
  /// @param lines with line ends   @throws DeviceError
  void append(const std::string& lines);
  /// The output is complete.
  void remove();

 private:
  std::filesystem::path path_;
  std::vector<std::string> lines_;
  LineFile file_;
};

/// Of what judges: also what the files are that a command of it names.
/// @param settings a function's settings as JSON   @param command of a program; empty: it is none
std::string key_of_judge(const std::string& settings, const std::string& command);

}  // namespace sftrun::app
