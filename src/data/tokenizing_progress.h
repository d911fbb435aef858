#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace sftrun::data {

/// Logs the progress of tokenizing every few seconds.
class TokenizingProgress {
 public:
  explicit TokenizingProgress(std::string name,
                              std::chrono::duration<double> every = std::chrono::seconds(5))
      : name_(std::move(name)), every_(every) {}

  /// @param fraction of the source that was read
  void update(double fraction, int64_t num_records);

  /// "chat.jsonl: 25% tokenized (3,000 records), about 15 s left"
  static std::string line(const std::string& name, double fraction, int64_t num_records,
                          double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  std::string name_;
  std::chrono::duration<double> every_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

}  // namespace sftrun::data
