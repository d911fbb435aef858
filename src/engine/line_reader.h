#pragma once

#include <memory>
#include <optional>
#include <string>

namespace sftrun::engine {

/// Reads lines that a person types. At a terminal they can be edited, and earlier ones are found with
/// the arrow keys (libedit). From a file or a pipe they are read as they are.
class LineReader {
 public:
  /// @param prompt shown before each line at a terminal
  explicit LineReader(std::string prompt);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class End { kLine, kInterrupted, kEnd };  ///< Ctrl-C; Ctrl-D or the end of the file
  /// @param line receives the line without its line feed
  End read(std::string& line);
  bool is_terminal() const { return editor_ != nullptr; }

 private:
  struct Editor;
  End read_edited(std::string& line);
  std::unique_ptr<Editor> editor_;  // null: not a terminal
};

}  // namespace sftrun::engine
