#include "console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "sftrun/core/terminal.h"
#include "sftrun/core/verbosity.h"

namespace sftrun::launch {
namespace {

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

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
  if (stream == Stream::kErr) {
    const std::string erased = erasing();
    return write_all(options_.err_fd, erased + text + drawing());  // at once: nothing flickers
  }
  write_all(options_.err_fd, erasing());
  write_all(options_.out_fd, text);
  write_all(options_.err_fd, drawing());
}

void Console::set_live(Render render) {
  if (!options_.is_terminal) return;
  render_ = std::move(render);
  redraw();
}

void Console::redraw() {
  if (!render_) return;
  const std::string erased = erasing();
  write_all(options_.err_fd, erased + drawing());
}

void Console::keep_live() {
  render_ = nullptr;
  drawn_.clear();
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
