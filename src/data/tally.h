#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sftrun::data {

/// How often a problem was found, and the first places.
class Tally {
 public:
  void add(int64_t number, const std::string& place);
  int64_t count() const { return count_; }
  std::string places() const;  ///< "a.jsonl:2, a.jsonl:7, …"

 private:
  static constexpr size_t kShown = 3;
  int64_t count_ = 0;
  std::vector<std::string> places_;
  bool more_ = false;
};

}  // namespace sftrun::data
