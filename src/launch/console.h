#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/console_writer.h"

namespace sftrun::launch {

enum class Stream { kOut, kErr };

struct TerminalSize {
  int columns = 80, rows = 24;
};

/// Rows of a terminal that lines take up, if the terminal breaks lines that are too long for it.
int rows_of(const std::vector<std::string>& lines, int columns);

/// Console output: lines, and on a terminal a live view of a few lines below them. The terminal's
/// modes are not changed, and the cursor is always at the beginning of a line, so nothing has to be
/// restored when the process is killed. Nobody waits for a console that nobody reads: lines that find
/// its buffer full are dropped and counted, and the live view is not drawn (core/console_writer.h).
class Console {
 public:
  struct Options {
    int out_fd = 1, err_fd = 2;
    bool is_terminal = false;  ///< draw the live view (on err_fd)
    /// The terminal breaks drawn lines anew when it becomes narrower, as most do.
    bool reflows = true;
  };
  /// Draws the live view if stderr is a terminal that supports it and SFTRUN_LOG is not "quiet".
  static Options detect();

  explicit Console(const Options& options, ConsoleWriter& writer = ConsoleWriter::of_process())
      : options_(options), writer_(writer) {}
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const { return options_.is_terminal; }
  /// The live view stays below.
  void print(Stream stream, std::string_view line);
  /// Lines without colours and control characters, each of at most `columns` characters of ASCII.
  using Render = std::function<std::vector<std::string>(TerminalSize)>;
  /// No effect without a terminal.
  void set_live(Render render);
  /// Draws the live view again: its values or the terminal's size have changed.
  void redraw();
  /// The live view as it is becomes part of the lines.
  void keep_live();

 private:
  bool write(Stream stream, ConsoleWriter::Text text);
  /// What removes the drawn lines.
  std::string erasing() const;
  std::string drawing();

  Options options_;
  ConsoleWriter& writer_;
  Render render_;
  std::vector<std::string> drawn_;
};

}  // namespace sftrun::launch
