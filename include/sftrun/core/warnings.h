#pragma once

#include <string>
#include <vector>

#include "sftrun/core/log.h"

/// Warnings of runs on several ranks. `log::warn` is about the run: every rank may come upon it,
/// and the console shows it once (under other launchers than our own: from rank 0). What is about
/// one rank is shown from that rank.
namespace sftrun::log {

/// @param message "rank 2 waits …"
void write_of_rank(int rank, std::string_view message);

template <typename... Args>
void warn_of_rank(int rank, fmt::format_string<Args...> f, Args&&... args) {
  write_of_rank(rank, fmt::format(f, std::forward<Args>(args)...));
}

/// The warnings about the run that this process has written. Thread-safe.
std::vector<std::string> written_warnings();

}  // namespace sftrun::log
