#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace sftrun::launch {

enum class Stream { kOut, kErr };

/// Console output: lines, and on a terminal a progress line below them. Write errors are ignored,
/// so that a closed terminal does not end a run.
class Console {
 public:
  struct Options {
    int out_fd = 1, err_fd = 2;
    bool is_terminal = false;  ///< draw the progress line (on err_fd)
  };
  /// Draws the progress line if stderr is a terminal that supports it.
  static Options detect();

  explicit Console(const Options& options) : options_(options) {}
  ~Console() { clear_live(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const { return options_.is_terminal; }
  /// The progress line stays below.
  void print(Stream stream, std::string_view line);
  /// @param render returns the line for a width in columns. No effect without a terminal.
  void set_live(std::function<std::string(int columns)> render);
  void clear_live();

 private:
  void draw();
  void erase();

  Options options_;
  std::function<std::string(int)> render_;
  bool is_drawn_ = false;
};

}  // namespace sftrun::launch
