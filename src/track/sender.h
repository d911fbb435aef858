#pragma once

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "metrics_tail.h"
#include "records.h"
#include "tracker.h"

namespace sftrun::track {

struct SenderOptions {
  std::filesystem::path run_dir;
  const config::TrackerRow* row = nullptr;
  double begun_at_s = 0;  ///< Unix time: what an earlier process left is older
  double end_s = 10;
  std::function<bool()> should_end;
};

/// The thread of one tracker: reads lines and sends them, and tries again what fails.
class Sender {
 public:
  Sender(SenderOptions options, Records& records, const config::RunConfig& config,
         const std::string& guard);
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Asks for the end, without waiting.
  void close(RunEnd end);
  /// Waits for it.
  void join();

 private:
  void run();
  void wait(double seconds);
  bool begin();
  void work();
  std::vector<TimedLine> next_lines();
  void fail(const std::string& what);
  void answered();
  void report_rest();
  bool is_closed();
  bool should_stop();
  TrackedRun tracked_run(const config::RunConfig& config, const std::string& guard);

  const SenderOptions options_;
  Records& records_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<RunEnd> end_;
  double ends_at_s_ = 0;  // monotonic; of a closed sender

  // Of the thread alone.
  MetricsTail tail_;
  std::unique_ptr<Tracker> tracker_;
  std::vector<TimedLine> waiting_;  // read, and not sent
  Position position_;
  int64_t first_step_ = 0;
  double clock_s_ = 0;  // Unix time at which the last line was written
  bool has_begun_ = false, is_open_ = false, is_done_ = false, is_missing_ = false;
  int failures_ = 0;
  double failing_since_s_ = 0;
  std::thread thread_;
};

}  // namespace sftrun::track
