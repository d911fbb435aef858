#include "console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace sftrun::launch {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

int columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Console::Options Console::detect() {
  const char* term = std::getenv("TERM");
  const bool can_move = term && *term && std::string_view(term) != "dumb";
  return {.is_terminal = can_move && ::isatty(STDERR_FILENO) != 0};
}

void Console::print(Stream stream, std::string_view line) {
  erase();
  write_all(stream == Stream::kOut ? options_.out_fd : options_.err_fd, std::string(line) + "\n");
  draw();
}

void Console::set_live(std::function<std::string(int)> render) {
  if (!options_.is_terminal) return;
  render_ = std::move(render);
  erase();
  draw();
}

void Console::clear_live() {
  erase();
  render_ = nullptr;
}

void Console::draw() {
  if (!render_) return;
  // One column less, because some terminals wrap a full line.
  write_all(options_.err_fd, render_(columns_of(options_.err_fd) - 1));
  is_drawn_ = true;
}

void Console::erase() {
  if (is_drawn_) write_all(options_.err_fd, kEraseLine);
  is_drawn_ = false;
}

}  // namespace sftrun::launch
