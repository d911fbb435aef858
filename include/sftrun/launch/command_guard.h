#pragma once

#include <string>

/// The process between a run and a command of the user (`callbacks`). It starts the command, and ends it, with every
/// process that it has started, when it is told to or when the run has gone, even by kill -9: processes that made
/// themselves a session of their own (setsid, daemons), too.
namespace sftrun::launch {

/// The first argument of a program that is to be this process; the second one is the command.
constexpr const char* kCommandGuard = "command-guard";

/// Runs `sh -c command`, with the standard streams and variables of this process, until it has ended. What it left in
/// the background then goes on, or is killed where the run wants that. Does not return.
/// @pre descriptor 3 is a socket to the run (src/launch/command_guard.h), and all signals are blocked
[[noreturn]] void guard_command(const std::string& command);

}  // namespace sftrun::launch
