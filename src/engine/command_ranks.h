#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "rank.h"
#include "session.h"

/// The processes of a command that uses a model: each has a copy of it, or they have it together.
namespace sftrun::engine {

/// Runs a command as the rank of this process. With "parallel.strategy" device_map this process has
/// a rank for each device, as threads. A failure is reported while the other ranks are connected.
/// @param request with `folder` if there may be several processes: their logs are kept there
/// @param body ends with all ranks connected, or before they were
/// @return the exit code of `body` or of the failure
int run_as_ranks(const app::RanksRequest& request, const FailureContext& context,
                 const std::function<int(const app::RanksRequest& request, Rank& rank)>& body);
template <class Request>
int run_as_ranks(const Request& request, int (*body)(const Request& request, Rank& rank)) {
  return run_as_ranks(request.ranks, failure_context(request),
                      [&](const app::RanksRequest& of_ranks, Rank& rank) {
                        Request whole = request;
                        whole.ranks = of_ranks;
                        return body(whole, rank);
                      });
}

/// Writes the result of a command to standard output. A launcher marks the lines of its workers with
/// their ranks, so it prints the result itself, from `folder`.
/// @param rank the first one
void write_result(const app::RanksRequest& request, const Rank& rank, const std::string& text);

/// The ranks of a command, which have its models together or each a copy of them.
class CommandRanks {
 public:
  /// @throws ConfigError if the division does not fit the number of ranks
  CommandRanks(const app::RanksRequest& request, Rank& rank);
  /// @throws ConfigError if the ranks have more than one copy of a model
  void require_one_copy() const;
  /// Connects them.   @return 0, or the exit code of a stop
  int connect();
  /// Loads a model as `engine::load_model`, or the part of it that this rank has. Lines about dtype,
  /// device and division are those of the first model.
  /// @param loaded receives it
  /// @param bases of the other adapters of this model; null: it has weights of its own
  /// @return 0, or the exit code of a stop that any rank was asked for
  int load_model(const app::ModelRequest& request, LoadedModel& loaded,
                 SharedBases* bases = nullptr);

 private:
  void tell_of_division() const;

  const app::RanksRequest& request_;
  Rank& rank_;
  std::optional<config::ParallelConfig> parallel_;  // nullopt: each has all of a model
  bool has_told_ = false;
};

}  // namespace sftrun::engine
