#pragma once

/// What a thread logs.
namespace sftrun::log {

/// While it exists, messages of this thread below errors are written as debug messages: several
/// ranks in one process would say the same.
class ErrorsOfThread {
 public:
  ErrorsOfThread();
  ~ErrorsOfThread();
  ErrorsOfThread(const ErrorsOfThread&) = delete;
  ErrorsOfThread& operator=(const ErrorsOfThread&) = delete;
};

}  // namespace sftrun::log
