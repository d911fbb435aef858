#include "console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "sftrun/core/terminal.h"
#include "sftrun/core/verbosity.h"

namespace sftrun::launch {
namespace {

TerminalSize size_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0) return {};
  return {.columns = size.ws_col > 0 ? size.ws_col : TerminalSize{}.columns,
          .rows = size.ws_row > 0 ? size.ws_row : TerminalSize{}.rows};
}

/// The environment variable, "" if it is not set.
std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

int rows_of(const std::vector<std::string>& lines, int columns) {
  const int width = std::max(columns, 1);
  int rows = 0;
  for (const std::string& line : lines)
    rows += std::max(1, (static_cast<int>(line.size()) + width - 1) / width);
  return rows;
}

Console::Options Console::detect() {
  return {.is_terminal = is_redrawable(STDERR_FILENO) && log::verbosity() != log::Verbosity::kQuiet,
          // xterm and the console of Linux cut lines off. xterm sets this variable.
          .reflows = variable("XTERM_VERSION").empty() && variable("TERM") != "linux"};
}

void Console::print(Stream stream, std::string_view line) {
  const std::string text = std::string(line) + "\n";
  const std::vector<std::string> drawn_before = drawn_;
  if (stream == Stream::kErr) {  // at once: nothing flickers
    const std::string erased = erasing(), view = drawing();
    if (!write(Stream::kErr, {.lines = text, .before = erased, .after = view}))
      drawn_ = drawn_before;
    return;
  }
  const std::string erased = erasing();
  const bool is_erased = drawn_.empty() || write(Stream::kErr, {.lines = {}, .before = erased});
  write(Stream::kOut, {.lines = text});
  if (!is_erased || !render_) return;
  const std::string view = drawing();
  if (!write(Stream::kErr, {.lines = {}, .before = {}, .after = view})) drawn_.clear();
}

void Console::set_live(Render render) {
  if (!options_.is_terminal) return;
  render_ = std::move(render);
  redraw();
}

void Console::redraw() {
  if (!render_ || writer_.is_late()) return;
  const std::vector<std::string> drawn_before = drawn_;
  const std::string erased = erasing(), view = drawing();
  if (!write(Stream::kErr, {.lines = {}, .before = erased, .after = view})) drawn_ = drawn_before;
}

void Console::keep_live() {
  render_ = nullptr;
  drawn_.clear();
}

/// Workers write faster than one line at a time is taken.   @return false: it was dropped
bool Console::write(Stream stream, ConsoleWriter::Text text) {
  text.waits = false;
  return writer_.write(stream == Stream::kOut ? options_.out_fd : options_.err_fd, text);
}

std::string Console::erasing() const {
  if (drawn_.empty()) return {};
  const TerminalSize size = size_of(options_.err_fd);
  const int rows =
      options_.reflows ? rows_of(drawn_, size.columns) : static_cast<int>(drawn_.size());
  // Up, and everything below is removed.
  return fmt::format("\x1b[{}A\r\x1b[J", std::min(rows, std::max(size.rows - 1, 1)));
}

std::string Console::drawing() {
  drawn_.clear();
  if (!render_) return {};
  TerminalSize size = size_of(options_.err_fd);
  size.columns = std::max(size.columns - 1, 1);  // some terminals wrap a full line
  drawn_ = render_(size);
  std::string text;
  for (const std::string& line : drawn_) text += line + "\n";
  return text;
}

}  // namespace sftrun::launch
