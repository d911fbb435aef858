#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace sftrun::launch {

enum class Stream { kOut, kErr };

/// What a person sees: whole lines, and on a terminal one live line below them. Errors of writing
/// are ignored: a closed terminal must not end a run.
class Console {
 public:
  struct Options {
    int out_fd = 1, err_fd = 2;
    bool is_terminal = false;  ///< draw the live line (on err_fd)
  };
  /// Draws where stderr is a terminal that can.
  static Options detect();

  explicit Console(const Options& options) : options_(options) {}
  ~Console() { clear_live(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const { return options_.is_terminal; }
  /// The live line stays below.
  void print(Stream stream, std::string_view line);
  /// @param render gives the line for a width in columns; does nothing when not on a terminal
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
