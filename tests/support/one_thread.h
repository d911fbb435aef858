#pragma once

#include <ATen/Parallel.h>

namespace sftrun {

/// Threads have working memory of their own, which depends on their number.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace sftrun
