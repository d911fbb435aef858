// A worker that does as it is told, for the supervisor's tests. Each argument is a script for one
// rank, `RANK: word args; word args`,
// `*:` for ranks without one. Words: see `perform`.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "sftrun/core/activity.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/command_guard.h"
#include "sftrun/launch/error_file.h"
#include "sftrun/launch/status.h"
#include "sftrun/launch/stop_signals.h"

namespace {

using namespace sftrun;

void sleep_s(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void append_line(const std::string& file, const std::string& line) {
  std::ofstream(file, std::ios::app) << line << "\n";
}

std::string rest_of(std::istringstream& words) {
  std::string rest;
  std::getline(words >> std::ws, rest);
  return rest;
}

[[noreturn]] void fail(std::istringstream& words, bool peer_lost) {
  int code = 0;
  int64_t step = 0;
  words >> code >> step;
  const std::string message =
      "error: " + rest_of(words) + "\n  at   somewhere\n  fix: do something";
  std::fprintf(stderr, "%s\n", message.c_str());
  launch::write_error_file(message, code, step, peer_lost);
  std::exit(code);
}

/// What a worker does in a moment on its way to a checkpoint: nothing (""), `compute`, `save`, pass from one
/// micro-batch to the next (`change`), wait for the others (`collective`), or for its device (`device`), which computes as `compute`
/// does.
void do_a_moment(const std::string& what, Activity& activity) {
  constexpr double kMoment_s = 0.01;
  const auto begin = std::chrono::steady_clock::now();
  if (what == "change") activity.set_work(Work::kForward);
  const bool computes = what == "compute" || what == "device";
  while (computes &&
         std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
             kMoment_s) {
  }
  if (!computes) sleep_s(kMoment_s);
}

/// Trains until somebody asks it to stop, then takes `seconds` for a checkpoint.
/// @param last_phase of its status when it is asked
[[noreturn]] void train(double seconds, const std::string& what, launch::Phase last_phase) {
  const launch::StopSignals stop;
  launch::StatusWriter().write({.phase = launch::Phase::kTraining});
  launch::StatusWriter().write({.phase = last_phase});
  Activity activity = Activity::of_this_process();
  std::puts("training");
  std::fflush(stdout);
  while (!stop.requested()) sleep_s(0.01);
  const auto begin = std::chrono::steady_clock::now();
  if (what == "save") activity.set_work(Work::kSaving);
  if (what == "collective") activity.begin_wait("all_reduce");
  if (what == "device") activity.begin_wait("device");
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds)
    do_a_moment(what, activity);
  std::puts("checkpoint written");
  std::fflush(stdout);
  ::_exit(stop.exit_code());
}

/// A grandchild that outlives its parent unless somebody minds it; its pid goes into `file`.
void spawn(const std::string& file) {
  if (const pid_t pid = ::fork(); pid == 0) {
    ::signal(SIGTERM, SIG_IGN);
    for (;;) ::pause();
  } else {
    append_line(file, std::to_string(pid));
  }
}

void write_status(std::istringstream& words) {
  launch::Status status{.phase = launch::Phase::kTraining, .loss = 1.5, .tokens_per_second = 1234};
  words >> status.step >> status.total_steps;
  launch::StatusWriter().write(status);
}

/// Until it is killed it is in a collective (`wait all_reduce`), or loads data (`work 17`, a step).
[[noreturn]] void record(const std::string& word, std::istringstream& words) {
  Activity activity = Activity::of_this_process();
  activity.answer_stack_requests();
  const std::string what = rest_of(words);
  if (word == "wait") {
    activity.begin_wait(what);
  } else {
    activity.set_step(std::stoi(what));
    activity.set_work(Work::kDataLoader);
  }
  for (;;) sleep_s(0.05);
}

void perform(const std::string& command) {
  std::istringstream words(command);
  std::string word;
  words >> word;
  double seconds = 0;
  int number = 0;
  if (word == "print") {
    std::puts(rest_of(words).c_str());
  } else if (word == "echo") {  // what it reads, up to the end
    for (std::string line; std::getline(std::cin, line);) {
      std::printf("read %s\n", line.c_str());
      std::fflush(stdout);
    }
  } else if (word == "stderr") {
    std::fprintf(stderr, "%s\n", rest_of(words).c_str());
  } else if (word == "env") {
    std::puts(std::getenv(rest_of(words).c_str()));
  } else if (word == "pid") {
    append_line(rest_of(words), std::to_string(::getpid()));
  } else if (word == "sleep") {
    words >> seconds;
    sleep_s(seconds);
  } else if (word == "exit") {
    words >> number;
    std::exit(number);
  } else if (word == "fail" || word == "lose_peer") {
    fail(words, word == "lose_peer");
  } else if (word == "lose_disk") {  // the error file cannot be written
    ::setenv("SFTRUN_ERROR_FILE", "/proc/error.json", 1);
  } else if (word == "flood") {  // lines on stderr
    words >> number;
    for (int i = 0; i < number; ++i) std::fprintf(stderr, "[12:03:04.118] [info] line %d\n", i);
  } else if (word == "raise") {
    words >> number;
    ::signal(number, SIG_DFL);
    ::raise(number);
  } else if (word == "ignore") {
    ::signal(SIGTERM, SIG_IGN);
    ::signal(SIGINT, SIG_IGN);
  } else if (word == "hang") {
    for (;;) ::pause();
  } else if (word == "train") {
    words >> seconds;
    train(seconds, rest_of(words), launch::Phase::kTraining);
  } else if (word == "answer") {  // in an evaluation
    words >> seconds;
    train(seconds, rest_of(words), launch::Phase::kGenerating);
  } else if (word == "spawn") {
    spawn(rest_of(words));
  } else if (word == "status") {
    write_status(words);
  } else if (word == "commands") {  // of `callbacks` are still running
    launch::StatusWriter().write({.phase = launch::Phase::kCommands});
  } else if (word == "wait" || word == "work") {
    record(word, words);
  } else if (word == "once") {  // the rest only in the first start
    if (std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) != "0") std::exit(0);
  } else if (!word.empty()) {
    std::fprintf(stderr, "test_worker: unknown word %s\n", word.c_str());
    std::exit(99);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == launch::kCommandGuard) launch::guard_command(argv[2]);
  const std::string own = std::string(std::getenv("RANK")) + ":";
  std::string script;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with(own))
      script = argument.substr(own.size());
    else if (argument.starts_with("*:") && script.empty())
      script = argument.substr(2);
  }
  for (const std::string& command : sftrun::split(script, ';'))
    perform(std::string(sftrun::trim(command)));
  return 0;
}
