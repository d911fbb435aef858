#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include "sftrun/core/console_writer.h"
#include "sftrun/core/log.h"
#include "sftrun/core/terminal.h"
#include "sftrun/core/units.h"
#include "sftrun/core/verbosity.h"

namespace sftrun::hub {
namespace {

constexpr auto kOnTerminal = std::chrono::milliseconds(200);
constexpr auto kInLog = std::chrono::seconds(15);

}  // namespace

Progress::Progress(std::string what, uint64_t total_bytes, bool quiet)
    : what_(std::move(what)),
      total_bytes_(total_bytes),
      quiet_(quiet || log::verbosity() == log::Verbosity::kQuiet),
      on_terminal_(is_redrawable(STDERR_FILENO)),
      start_(Clock::now()),
      next_(start_ + (on_terminal_ ? Clock::duration(kOnTerminal) : Clock::duration(kInLog))) {}

Progress::~Progress() {
  if (wrote_ && on_terminal_) ConsoleWriter::of_process().write(STDERR_FILENO, "\n");
}

void Progress::update(uint64_t done_bytes, uint64_t received_bytes) {
  const auto now = Clock::now();
  if (quiet_ || now < next_) return;
  next_ = now + (on_terminal_ ? Clock::duration(kOnTerminal) : Clock::duration(kInLog));
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string text = line(what_, done_bytes, total_bytes_, received_bytes, seconds);
  wrote_ = true;
  if (!on_terminal_) return log::info("{}", text);
  ConsoleWriter& console = ConsoleWriter::of_process();
  if (console.is_late()) return;
  console.write(STDERR_FILENO,
                fmt::format("\r{}\033[K", text));  // clears the rest of a longer line
}

std::string Progress::line(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                           uint64_t received_bytes, double seconds) {
  std::string text =
      fmt::format("{}: {} of {}", what, format_bytes(done_bytes), format_bytes(total_bytes));
  if (received_bytes == 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(received_bytes) / seconds;
  const uint64_t left = total_bytes > done_bytes ? total_bytes - done_bytes : 0;
  return text + fmt::format(", {}/s, {} left", format_bytes(static_cast<uint64_t>(rate)),
                            format_duration(static_cast<double>(left) / rate));
}

}  // namespace sftrun::hub
