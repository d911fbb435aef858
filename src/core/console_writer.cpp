#include "sftrun/core/console_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "sftrun/core/plural.h"

namespace sftrun {
namespace {

/// Writes some of the text, as soon as that is possible.   @return the bytes written; 0: it cannot be
size_t write_some_to_console(int fd, std::string_view text) {
  constexpr size_t kMaxAtOnce = 4096;  // so that progress is seen
  for (;;) {
    const ssize_t written = ::write(fd, text.data(), std::min(text.size(), kMaxAtOnce));
    if (written > 0) return static_cast<size_t>(written);
    if (written == 0 || (errno != EINTR && errno != EAGAIN)) return 0;
    pollfd wanted{.fd = fd, .events = POLLOUT, .revents = 0};
    if (errno == EAGAIN) ::poll(&wanted, 1, -1);  // another program has made it non-blocking
  }
}

/// Whether the descriptor takes some text now.
bool takes_text(int fd) {
  pollfd wanted{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&wanted, 1, 0) > 0;
}

std::chrono::duration<double> seconds_of_wait(double seconds) {
  return std::chrono::duration<double>(seconds);
}

}  // namespace

struct ConsoleWriter::State {
  struct Piece {
    int fd;
    std::string text;
  };

  explicit State(const Limits& given) : limits(given) {}

  /// The thread: until the writer is destroyed, and everything is written.
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return is_closed || !waiting.empty(); });
      if (waiting.empty()) return;
      const Piece piece = std::move(waiting.front());
      waiting.pop_front();
      write_out(piece, lock);
      ++num_written;
      if (waiting.empty()) is_late = false;
      changed.notify_all();
    }
  }

  void write_out(const Piece& piece, std::unique_lock<std::mutex>& lock) {
    for (std::string_view left = piece.text; !left.empty();) {
      lock.unlock();
      const size_t written = write_some_to_console(piece.fd, left);
      lock.lock();
      const size_t gone = written > 0 ? written : left.size();
      left.remove_prefix(gone);
      num_bytes -= gone;
      changed.notify_all();
    }
  }

  /// @pre the mutex is held   @return false: there is no room
  bool add(int fd, std::string text) {
    if (num_bytes + text.size() > limits.max_bytes) return false;
    num_bytes += text.size();
    waiting.push_back({fd, std::move(text)});
    ++num_added;
    last_fd = fd;
    changed.notify_all();
    return true;
  }

  bool is_half_full() const { return num_bytes > limits.max_bytes / 2; }

  std::string note_of_dropped() const {
    if (num_dropped == 0) return {};
    return fmt::format("warning: {} dropped here, because nobody read the console\n",
                       counted(num_dropped, "line"));
  }

  /// Without a thread, if none can be started, texts are written at once.
  void start(const std::shared_ptr<State>& self) {
    is_started = true;
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);  // the thread inherits the mask: it gets no signal
    try {
      std::thread([self] {
        ::prctl(PR_SET_NAME, "sftrun-console");
        self->run();
      }).detach();
    } catch (const std::system_error&) {
      has_no_thread = true;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  const Limits limits;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Piece> waiting;
  size_t num_bytes = 0;  ///< of waiting, and of the piece that is being written
  uint64_t num_added = 0, num_written = 0;
  size_t num_dropped = 0;  ///< lines, since the last note
  int last_fd = STDERR_FILENO;
  bool is_late = false, is_closed = false, is_started = false, has_no_thread = false;
};

ConsoleWriter::ConsoleWriter(const Limits& limits) : state_(std::make_shared<State>(limits)) {}

ConsoleWriter::~ConsoleWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->is_closed = true;
  state_->changed.notify_all();
}

bool ConsoleWriter::write(int fd, const Text& text) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (!state.is_started) state.start(state_);
  std::string whole(text.before);
  whole.append(state.note_of_dropped()).append(text.lines).append(text.after);
  if (state.has_no_thread) {
    for (std::string_view left = whole; !left.empty();) {
      const size_t written = write_some_to_console(fd, left);
      left.remove_prefix(written > 0 ? written : left.size());
    }
    return true;
  }
  if (!state.add(fd, std::move(whole))) {
    state.num_dropped +=
        static_cast<size_t>(std::count(text.lines.begin(), text.lines.end(), '\n'));
    return false;
  }
  state.num_dropped = 0;
  if (state.is_late) return true;
  const uint64_t own = state.num_added;
  const bool is_taken = takes_text(fd), waits = text.waits || state.is_half_full();
  if (is_taken && !waits) return true;
  const double patience_s = is_taken ? state.limits.patience_s : 0;
  state.is_late = !state.changed.wait_for(lock, seconds_of_wait(patience_s),
                                          [&] { return state.num_written >= own; });
  return true;
}

bool ConsoleWriter::is_late() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_late;
}

bool ConsoleWriter::flush(double patience_s) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  for (;;) {
    if (state.num_dropped > 0 && state.add(state.last_fd, state.note_of_dropped()))
      state.num_dropped = 0;
    if (state.num_bytes == 0) return true;
    const size_t before = state.num_bytes;
    const bool has_progressed = state.changed.wait_for(lock, seconds_of_wait(patience_s),
                                                       [&] { return state.num_bytes != before; });
    if (!has_progressed) return false;
  }
}

ConsoleWriter& ConsoleWriter::of_process() {
  struct Own {
    pid_t pid = ::getpid();
    ConsoleWriter writer;
  };
  static std::atomic<Own*> own{nullptr};  // never destroyed: its thread may still write at exit
  Own* current = own.load();
  if (current != nullptr && current->pid == ::getpid()) return current->writer;
  // The copy that a forked process inherits has no thread.
  Own* fresh = new Own();
  if (own.compare_exchange_strong(current, fresh)) return fresh->writer;
  delete fresh;
  return current->writer;
}

}  // namespace sftrun
