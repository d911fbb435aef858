#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace sftrun {

/// Exit codes of the process; docs/errors.md explains them to users.
enum class ExitCode : int {
  kDone = 0,
  kUsage = 2,          ///< bad usage or configuration
  kData = 3,           ///< bad data or model file
  kOutOfMemory = 4,    ///< also if the kernel's OOM killer ended a worker
  kWorkerFailed = 5,   ///< a worker failed, or its device, network or operating system
  kStopped = 75,       ///< stopped on request, with a checkpoint (SIGTERM, SIGUSR1)
  kInterrupted = 130,  ///< Ctrl-C, with a checkpoint
};

/// An error for users. `what()` returns
///     error: <message>
///       at   <where>
///       fix: <fix>
/// without the lines of empty parts. Use `excerpt` for quotes of input; a part of more than 16 KiB
/// is truncated.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string message, std::string where = {}, std::string fix = {});

  ExitCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& where() const { return where_; }
  const std::string& fix() const { return fix_; }

 private:
  struct Bounded {};
  Error(Bounded, ExitCode code, std::string message, std::string where, std::string fix);

  ExitCode code_;
  std::string message_, where_, fix_;
};

/// Wrong flags or configuration (exit 2).
struct ConfigError : Error {
  explicit ConfigError(std::string message, std::string where = {}, std::string fix = {})
      : Error(ExitCode::kUsage, std::move(message), std::move(where), std::move(fix)) {}
};
/// A data or model file that is missing, malformed or unsuitable (exit 3).
struct DataError : Error {
  explicit DataError(std::string message, std::string where = {}, std::string fix = {})
      : Error(ExitCode::kData, std::move(message), std::move(where), std::move(fix)) {}
};
struct OutOfMemoryError : Error {
  explicit OutOfMemoryError(std::string message, std::string where = {}, std::string fix = {})
      : Error(ExitCode::kOutOfMemory, std::move(message), std::move(where), std::move(fix)) {}
};
/// A failure of a device or of the operating system (exit 5).
struct DeviceError : Error {
  explicit DeviceError(std::string message, std::string where = {}, std::string fix = {})
      : Error(ExitCode::kWorkerFailed, std::move(message), std::move(where), std::move(fix)) {}
};
struct CommError : Error {
  explicit CommError(std::string message, std::string where = {}, std::string fix = {})
      : Error(ExitCode::kWorkerFailed, std::move(message), std::move(where), std::move(fix)) {}
};

/// After this call, a failed allocation in any thread ends the process with a message and exit code
/// 4 instead of abort().
void end_on_bad_alloc();

/// A violated invariant, that is a bug in this program. Throws std::logic_error with file and line.
[[noreturn]] void invariant_failed(const char* file, int line, const std::string& what);

}  // namespace sftrun

/// Checks an invariant, which no user input can violate.
#define SFTRUN_CHECK(condition)                                                   \
  do {                                                                            \
    if (!(condition)) ::sftrun::invariant_failed(__FILE__, __LINE__, #condition); \
  } while (false)
/// The same for equality; prints both values.
#define SFTRUN_CHECK_EQ(a, b)                                                                     \
  do {                                                                                            \
    const auto& sftrun_a = (a);                                                                   \
    const auto& sftrun_b = (b);                                                                   \
    if (!(sftrun_a == sftrun_b))                                                                  \
      ::sftrun::invariant_failed(__FILE__, __LINE__,                                              \
                                 fmt::format("{} == {} ({} vs {})", #a, #b, sftrun_a, sftrun_b)); \
  } while (false)
