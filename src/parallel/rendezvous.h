#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "sftrun/parallel/communicator.h"

/// How the ranks of a run meet: c10d's TCPStore, and who has not come yet.
namespace sftrun::parallel {

/// torchrun's agent hosts the store itself; elsewhere rank 0 does.
bool hosts_store(int rank);

/// Opens the store, or waits for its host.
///
/// The host listens on the interface of `identity.master_addr` alone: the loopback in a run that
/// one machine starts. It listens on all interfaces, and warns, only where that is no address of
/// this machine in a network and the ranks are on several machines.
///
/// @throws CommError after `options.unreachable_s` where the name is unknown or the address does
/// not answer; after `options.timeout_s` where nothing listens; at once where the port is taken
/// @throws StoppedWaiting when `options.stop_requested` says so
c10::intrusive_ptr<c10d::Store> open_store(const Identity& identity, const ConnectOptions& options);

/// A second connection to the same store, for another thread: a connection answers one call at a
/// time, and a call may wait for long.
c10::intrusive_ptr<c10d::Store> another_connection(const Identity& identity);

/// Returns when every rank has come. Rank 0 names the ranks that are missing after
/// `options.report_s`, and again after each doubling of that time.
/// @throws CommError naming them after `options.timeout_s`
/// @throws StoppedWaiting as above
void wait_for_all_ranks(c10d::Store& store, const Identity& identity,
                        const ConnectOptions& options);

/// "rank 3", "ranks 1, 2 and 5", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 120 more".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace sftrun::parallel
