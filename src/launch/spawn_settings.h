#pragma once

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "c_strings.h"

namespace sftrun::launch {

/// What a child does with its descriptors and signals before it becomes a program: a process group of
/// its own, and no other descriptors than the standard streams and those that are passed.
class SpawnSettings {
 public:
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t signals;
    sigemptyset(&signals);
    // What a run itself has changed. Others that it was started to ignore stay ignored.
    for (const int number : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM}) sigaddset(&signals, number);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    block_signals(false);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  /// @param as its number in the child
  void pass(int fd, int as) { ::posix_spawn_file_actions_adddup2(&files_, fd, as); }
  void close_from(int first) { ::posix_spawn_file_actions_addclosefrom_np(&files_, first); }
  /// Whether all signals are blocked in the child; by default none is.
  void block_signals(bool all) {
    sigset_t mask;
    all ? sigfillset(&mask) : sigemptyset(&mask);
    ::posix_spawnattr_setsigmask(&attributes_, &mask);
  }

  /// @param variables of the child, "NAME=value", and null at the end
  /// @return 0, or the errno of the failure
  int spawn(const char* program, std::vector<std::string> arguments, char* const* variables,
            pid_t& pid) const {
    return ::posix_spawn(&pid, program, &files_, &attributes_, c_strings(arguments).data(),
                         variables);
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

}  // namespace sftrun::launch
