#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace sftrun {

/// Writes to the console from a thread of its own, so that nobody waits for a stopped terminal or for
/// a pipe that nobody reads. Texts stay in order, also those of several descriptors. Texts that find
/// the buffer full are dropped, and the next text that is written says how many lines that were.
/// Errors of a descriptor are ignored: a closed terminal ends no run. Thread-safe.
class ConsoleWriter {
 public:
  struct Limits {
    size_t max_bytes = 1 << 20;  ///< that wait to be written
    /// `write` returns when its text is written, which keeps the order with what others write, and
    /// loses nothing if the process crashes; but after this time at the latest, and at once if the
    /// console takes nothing now, or earlier texts are late.
    double patience_s = 0.5;
  };
  struct Text {
    std::string_view lines;
    std::string_view before = {}, after = {};  ///< control characters and a live view
    bool waits = true;  ///< false: `write` returns at once while half of the buffer is free
  };

  ConsoleWriter() : ConsoleWriter(Limits()) {}
  explicit ConsoleWriter(const Limits& limits);
  /// What is not written yet is lost, unless `flush` was called.
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  /// @return false: the buffer was full, and the text was dropped
  bool write(int fd, const Text& text);
  bool write(int fd, std::string_view lines) { return write(fd, Text{.lines = lines}); }
  /// Whether texts are late because nobody reads.
  bool is_late() const;
  /// Waits until everything is written, as long as there is progress.
  /// @param patience_s the longest wait without progress   @return whether everything is written
  bool flush(double patience_s = 5);

  /// The one of this process (or shared library). A forked process gets its own.
  static ConsoleWriter& of_process();

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread holds it, too: it may be in a write that never ends
};

}  // namespace sftrun
