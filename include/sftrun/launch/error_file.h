#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

/// The file in which a failing worker reports its error to the launcher: JSON, named by
/// SFTRUN_ERROR_FILE, written atomically. The launcher reports the earliest one as the root cause
/// (as in PyTorch's torch/distributed/elastic/multiprocessing/errors). The same object goes through
/// the status pipe (status.h), as {"error": {…}}: if the disk is full, there can be no file.
namespace sftrun::launch {

struct WorkerError {
  int rank = 0, local_rank = 0;
  int pid = 0;
  double time = 0;              ///< seconds since the epoch, when the failure was noticed
  std::optional<int64_t> step;  ///< optimizer step
  std::string message;          ///< the full text: `error: … / at … / fix: …`
  int exit_code = 5;
  bool peer_lost =
      false;  ///< only because another rank is gone; not the root cause if there is another failure
};

/// Reports the error of this process, with its rank, local rank, pid and the time: writes the file and
/// the line. Does nothing without SFTRUN_ERROR_FILE, or if the file exists. Never throws.
/// @param peer_lost a collective failed because a peer is gone; also detected from the message
/// @return whether a file was written
bool write_error_file(const std::string& message, int exit_code, std::optional<int64_t> step = {},
                      bool peer_lost = false) noexcept;
/// The same with all values given.
bool write_error_file(const std::filesystem::path& path, const WorkerError& error) noexcept;

/// nullopt if there is none or it cannot be parsed.
std::optional<WorkerError> read_error_file(const std::filesystem::path& path);
/// The error in a line of the status pipe; nullopt: it is another line.
std::optional<WorkerError> parse_error_line(std::string_view line);

}  // namespace sftrun::launch
