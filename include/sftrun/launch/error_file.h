#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

/// How a failing worker tells its launcher why: one JSON file, named by SFTRUN_ERROR_FILE, written
/// atomically. The launcher reports the earliest one as the root cause (the idea of PyTorch's
/// torch/distributed/elastic/multiprocessing/errors).
namespace sftrun::launch {

struct WorkerError {
  int rank = 0, local_rank = 0;
  int pid = 0;
  double time = 0;              ///< seconds since the epoch, when the failure was noticed
  std::optional<int64_t> step;  ///< optimizer step
  std::string message;          ///< full rendered text: `error: … / at … / fix: …`
  int exit_code = 5;
  bool peer_lost =
      false;  ///< only because another rank went away; never the root cause while there is another
};

/// What a worker calls where it catches its error, before it exits: fills in rank, local rank, pid
/// and the time from this process. Does nothing without SFTRUN_ERROR_FILE; the first error of a
/// process stays. Never throws.
/// @param peer_lost a collective failed because a peer is gone; also found by the message's words
/// @return whether a file was written
bool write_error_file(const std::string& message, int exit_code, std::optional<int64_t> step = {},
                      bool peer_lost = false) noexcept;
/// The same with everything given.
bool write_error_file(const std::filesystem::path& path, const WorkerError& error) noexcept;

/// nullopt if there is none or it cannot be parsed.
std::optional<WorkerError> read_error_file(const std::filesystem::path& path);

}  // namespace sftrun::launch
