#pragma once

#include <string>
#include <string_view>

namespace sftrun::launch {

/// Cuts a stream of bytes into lines.
class LineSplitter {
 public:
  /// Calls `take(std::string_view)` for each line that `bytes` completes, without its newline.
  template <typename Take>
  void add(std::string_view bytes, Take&& take) {
    for (;;) {
      const size_t newline = bytes.find('\n');
      pending_ += bytes.substr(0, newline);
      const bool too_long = pending_.size() > kMaxBytes;
      if (newline == std::string_view::npos && !too_long) return;
      hand_over(take);
      if (newline == std::string_view::npos) return;
      bytes.remove_prefix(newline + 1);
    }
  }
  /// Hands over what follows the last newline, if anything.
  template <typename Take>
  void finish(Take&& take) {
    if (!pending_.empty()) hand_over(take);
  }

 private:
  static constexpr size_t kMaxBytes = 64 << 10;  // a runaway line must not grow the launcher

  template <typename Take>
  void hand_over(Take&& take) {
    if (!pending_.empty() && pending_.back() == '\r') pending_.pop_back();
    take(std::string_view(pending_));
    pending_.clear();
  }

  std::string pending_;
};

}  // namespace sftrun::launch
