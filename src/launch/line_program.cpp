#include "sftrun/launch/line_program.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "guarded_command.h"
#include "pipe_write.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "unique_fd.h"

namespace sftrun::launch {
namespace {

using End = LineAnswers::End;

constexpr size_t kMaxLine = 1 << 20;    // bytes of an answer
constexpr size_t kMaxErrors = 4096;     // bytes of standard error that are kept
constexpr size_t kShownErrorLines = 8;  // of them
constexpr double kFinishS = 2;

/// The last bytes that a program wrote to its standard error.
class LastErrors {
 public:
  void add(std::string_view text) {
    text_ += text;
    if (text_.size() > 2 * kMaxErrors) text_.erase(0, text_.size() - kMaxErrors);
  }
  /// The last lines, of which the first may be incomplete.
  std::string text() const {
    const std::string_view all = trim(text_);
    size_t begin = all.size() > kMaxErrors ? all.size() - kMaxErrors : 0;
    size_t line = all.size();
    for (size_t i = 0; i < kShownErrorLines && line != std::string_view::npos && line > 0; ++i)
      line = all.rfind('\n', line - 1);
    if (line != std::string_view::npos && line > 0) begin = std::max(begin, line + 1);
    return std::string(all.substr(begin));
  }

 private:
  std::string text_;
};

/// What can be read now is given to `take`, up to 1 MiB: some programs never stop writing.
/// @return false: the other side has closed it
template <class Take>
bool read_available(int fd, Take&& take) {
  std::array<char, 1 << 16> buffer;
  for (int pieces = 0; pieces < 16;) {
    const ssize_t bytes = ::read(fd, buffer.data(), buffer.size());
    if (bytes > 0) {
      take(std::string_view(buffer.data(), static_cast<size_t>(bytes)));
      ++pieces;
      continue;
    }
    if (bytes == 0) return false;
    if (errno == EINTR) continue;
    return errno == EAGAIN;
  }
  return true;
}

}  // namespace

/// A program from its start to its end.
class LineProgram::Running {
 public:
  explicit Running(const LineProgramOptions& options) : options_(options) {
    Pipe in = make_pipe(), out = make_pipe(), error = make_pipe();
    std::map<std::string, std::string> variables = {{"PYTHONUNBUFFERED", "1"}};
    variables.insert(options.variables.begin(), options.variables.end());
    command_.emplace(options.guard, options.command, command_environment(variables),
                     CommandStreams{in.read.get(), out.write.get(), error.write.get()},
                     CommandRest::kIsKilled);
    in_ = std::move(in.write), out_ = std::move(out.read), error_ = std::move(error.read);
    for (const int fd : {in_.get(), out_.get(), error_.get()}) set_nonblocking(fd);
  }

  /// @return with an `end` other than kComplete the program has ended
  LineAnswers ask(std::span<const std::string> lines, double timeout_s) {
    read_streams();
    if (!text_.empty()) return too_many("each record");
    std::string question;
    for (const std::string& line : lines) question += line + "\n";
    const double end_s = monotonic_seconds() + timeout_s;
    LineAnswers answers;
    for (std::string_view left = question;;) {
      take_lines(lines.size(), answers.lines);
      if (answers.lines.size() == lines.size()) break;
      if (text_.size() > kMaxLine) return too_many(each_of(lines.size()));
      if (has_ended_ && !read_streams()) return ended(std::move(answers), lines.size());
      if (options_.should_stop && options_.should_stop()) return stopped(std::move(answers));
      const double left_s = end_s - monotonic_seconds();
      if (left_s <= 0) return late(std::move(answers), lines.size(), timeout_s);
      serve(left, left_s);
    }
    if (!lines.empty() && !std::exchange(has_answered_, true)) wait_for_more();
    read_streams();
    return text_.empty() ? answers : too_many(each_of(lines.size()));
  }

  /// Whether it ended between two calls as if all was done.
  bool is_done() {
    return command_->has_ended() && command_->succeeded() && !read_streams() && text_.empty();
  }

  /// Whether it was done with the batch before, and was just ending when `ask` gave it the next one.
  bool was_done(const LineAnswers& answers) const {
    return has_answered_ && answers.end == End::kEnded && answers.lines.empty() && text_.empty() &&
           command_->succeeded();
  }

  LineAnswers finish() {
    in_.reset();
    const double end_s = monotonic_seconds() + kFinishS;
    for (std::string_view nothing; !has_ended_ && monotonic_seconds() < end_s;)
      serve(nothing, end_s - monotonic_seconds());
    const bool was_late = !has_ended_;
    command_->end(GuardOrder::kEnd);
    read_streams();
    LineAnswers answers;
    if (!text_.empty()) return too_many("each record");
    if (!was_late) answers.what = command_->failure();
    if (!answers.what.empty()) answers.end = End::kEnded;
    answers.last_errors = errors_.text();
    return answers;
  }

 private:
  /// Waits until something can be read or written, and does so.   @param left to write
  void serve(std::string_view& left, double max_s) {
    constexpr double kTickS = 0.1;  // should_stop is asked
    enum Source : size_t { kIn, kOut, kError, kEnd };
    std::array<pollfd, 4> sources = {{{left.empty() ? -1 : in_.get(), POLLOUT, 0},
                                      {out_.get(), POLLIN, 0},
                                      {error_.get(), POLLIN, 0},
                                      {command_->socket(), 0, 0}}};
    const auto wait_ms = static_cast<int>(std::min(max_s, kTickS) * 1000) + 1;
    ::poll(sources.data(), sources.size(), wait_ms);
    if (sources[kEnd].revents != 0 && command_->has_ended()) has_ended_ = true;
    if (sources[kIn].revents != 0) write_some(left);
    read_streams();
  }

  /// A program that writes two lines for each would be ahead: its first batch would get wrong answers.
  void wait_for_more() const {
    constexpr int kWaitMs = 100;
    pollfd source{out_.get(), POLLIN, 0};
    ::poll(&source, 1, kWaitMs);
  }

  void write_some(std::string_view& left) {
    const ssize_t written = write_without_sigpipe(in_.get(), left);
    if (written > 0) left.remove_prefix(static_cast<size_t>(written));
    // Who does not read any more may still answer, or end.
    if (written < 0 && errno != EAGAIN && errno != EINTR) left = {};
  }

  /// @return whether there was something on standard output
  bool read_streams() {
    const size_t before = text_.size();
    // A closed stream would wake each wait at once.
    if (out_ && !read_available(out_.get(), [&](std::string_view text) { text_ += text; }))
      out_.reset();
    if (error_ && !read_available(error_.get(), [&](std::string_view text) { add_errors(text); }))
      error_.reset();
    return text_.size() > before;
  }

  void add_errors(std::string_view text) {
    errors_.add(text);
    if (!options_.on_error_line) return;
    error_line_ += text;
    size_t begin = 0;
    for (size_t end; (end = error_line_.find('\n', begin)) != std::string::npos; begin = end + 1)
      options_.on_error_line(std::string_view(error_line_).substr(begin, end - begin));
    error_line_.erase(0, begin);
    if (error_line_.size() > kMaxErrors) error_line_.clear();  // what has no lines is not shown
  }

  void take_lines(size_t count, std::vector<std::string>& lines) {
    size_t begin = 0;
    for (size_t end = 0; lines.size() < count; begin = end + 1) {
      end = text_.find('\n', begin);
      if (end == std::string::npos) break;
      lines.emplace_back(trim(std::string_view(text_).substr(begin, end - begin)));
    }
    text_.erase(0, begin);
  }

  void kill() {
    command_->end(GuardOrder::kKill);
    read_streams();
  }

  LineAnswers ended(LineAnswers answers, size_t count) {
    // The last line may have no end.
    if (answers.lines.size() + 1 == count && !trim(text_).empty() && command_->succeeded()) {
      answers.lines.emplace_back(trim(text_));
      text_.clear();
      return answers;
    }
    const std::string failure = command_->failure();
    answers.end = End::kEnded;
    answers.what = fmt::format("{} after {} of {} answers",
                               failure.empty() ? "ended with exit code 0" : failure,
                               answers.lines.size(), count);
    answers.last_errors = errors_.text();
    return answers;
  }

  LineAnswers late(LineAnswers answers, size_t count, double timeout_s) {
    kill();
    answers.end = End::kLate;
    answers.what = fmt::format("gave {} of {} answers within {:g} s, and was killed",
                               answers.lines.size(), count, timeout_s);
    answers.last_errors = errors_.text();
    return answers;
  }

  LineAnswers stopped(LineAnswers answers) {
    kill();
    answers.end = End::kStopped;
    answers.what = "was killed, because the command was told to stop";
    return answers;
  }

  static std::string each_of(size_t count) {
    return count == 1 ? "one record" : fmt::format("each of {} records", count);
  }

  /// @param records "each record"
  LineAnswers too_many(const std::string& records) {
    kill();
    LineAnswers answers{.end = End::kTooMany};
    answers.extra = excerpt(std::string_view(text_).substr(0, text_.find('\n')));
    answers.what = text_.size() > kMaxLine && text_.find('\n') == std::string::npos
                       ? fmt::format("wrote a line of more than {} bytes", kMaxLine)
                       : fmt::format("wrote more than one line for {}", records);
    answers.last_errors = errors_.text();
    return answers;
  }

  const LineProgramOptions& options_;
  std::optional<GuardedCommand> command_;
  UniqueFd in_, out_, error_;
  std::string text_;  // of its standard output, not yet taken
  LastErrors errors_;
  std::string error_line_;  // that is not complete
  bool has_answered_ = false, has_ended_ = false;
};

LineProgram::LineProgram(LineProgramOptions options) : options_(std::move(options)) {}

LineProgram::~LineProgram() {
  try {
    finish();
  } catch (const Error&) {  // it could not be started
  }
}

LineAnswers LineProgram::ask(std::span<const std::string> lines, double timeout_s) {
  if (running_ && running_->is_done()) running_.reset();
  if (!running_) running_ = std::make_unique<Running>(options_);
  LineAnswers answers = running_->ask(lines, timeout_s);
  if (running_->was_done(answers)) {
    running_ = std::make_unique<Running>(options_);
    answers = running_->ask(lines, timeout_s);
  }
  if (answers.end != End::kComplete) running_.reset();
  return answers;
}

LineAnswers LineProgram::finish() {
  if (!running_) return {};
  LineAnswers answers = running_->finish();
  running_.reset();
  return answers;
}

}  // namespace sftrun::launch
