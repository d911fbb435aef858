#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "sftrun/parallel/communicator.h"

/// Rendezvous of the ranks over c10d's TCPStore, with reports of ranks that are missing.
namespace sftrun::parallel {

/// Whether this rank hosts the store: rank 0, unless torchrun's agent does.
bool hosts_store(int rank);

/// Opens the store, or waits for its host.
///
/// A call to the store fails when its host gives no answer for `options.timeout_s`.
///
/// The host listens on the interface of `identity.master_addr` alone: the loopback in a run that
/// one machine starts. It listens on all interfaces, and warns, only where that is no address of
/// this machine in a network and the ranks are on several machines.
///
/// @throws CommError after `options.unreachable_s` if the name is unknown or the address does not
/// answer; after `options.first_answer_s` if another program listens there; after
/// `options.timeout_s` if nothing listens; at once if the port is in use
/// @throws StoppedWaiting when `options.stop_requested` returns true
c10::intrusive_ptr<c10d::Store> open_store(const Identity& identity, const ConnectOptions& options);

/// This machine's address, in digits, from which it reaches the master's; "": unknown, or the
/// loopback where the ranks are on several machines.
std::string own_address(const Identity& identity);

/// A second connection to the same store, for another thread: a connection answers one call at a
/// time, and a call may wait for long.
/// @param answer_s a call fails when the store's host gives no answer for so long
c10::intrusive_ptr<c10d::Store> another_connection(const Identity& identity, double answer_s);

/// Returns when every rank has joined. Rank 0 logs the missing ranks after `options.report_s`, and
/// again each time the waiting time has doubled.
/// @throws CommError naming the missing ranks after `options.timeout_s`
/// @throws StoppedWaiting as above
void wait_for_all_ranks(c10d::Store& store, const Identity& identity,
                        const ConnectOptions& options);

/// `open_store`, then `wait_for_all_ranks`. Where nodes restart their workers one by one, a rank may
/// find the store of the attempt that has just failed: it then tries again, for up to a minute.
c10::intrusive_ptr<c10d::Store> meet_all_ranks(const Identity& identity,
                                               const ConnectOptions& options);

}  // namespace sftrun::parallel
