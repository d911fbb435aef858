#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace sftrun::hub {

/// Progress of a download on stderr: on a terminal one line that is rewritten, else a log line from
/// time to time.
class Progress {
 public:
  /// @param what "owner/name"   @param total_bytes of all files, including those already on disk
  Progress(std::string what, uint64_t total_bytes, bool quiet);
  ~Progress();  ///< ends the terminal's line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(uint64_t done_bytes, uint64_t received_bytes);

  /// "owner/name: 1.20 GiB of 2.50 GiB, 48.00 MiB/s, 28 s left"
  static std::string line(const std::string& what, uint64_t done_bytes, uint64_t total_bytes,
                          uint64_t received_bytes, double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  uint64_t total_bytes_;
  bool quiet_, on_terminal_, wrote_ = false;
  Clock::time_point start_, next_;
};

}  // namespace sftrun::hub
