// What workers use: status, error file, stop signals, their environment.
#include <fcntl.h>

#include "sftrun/launch/error_file.h"
#include "sftrun/launch/status.h"
#include "sftrun/launch/stop_signals.h"
#include "supervised_run.h"

namespace sftrun::launch::testing {
namespace {

TEST(StatusLine, IsReadAsWritten) {
  const Status status{.phase = Phase::kEvaluating,
                      .step = 17,
                      .total_steps = 200,
                      .loss = 1.8342,
                      .tokens_per_second = 48210,
                      .eta_s = 71,
                      .memory_bytes = 5ull << 30};
  EXPECT_EQ(parse_status(to_json_line(status)), status);
  EXPECT_EQ(parse_status(to_json_line({.phase = Phase::kLoading})),
            Status{.phase = Phase::kLoading});
}

TEST(StatusLine, ALossThatIsNotFiniteIsAbsent) {
  EXPECT_EQ(parse_status(to_json_line({.loss = NAN}))->loss, std::nullopt);
}

TEST(StatusLine, OtherTextIsNotAStatus) {
  for (const char* line : {"", "{", "[]", "17", R"({"phase":"dancing"})", R"({"step":1})"}) {
    EXPECT_EQ(parse_status(line), std::nullopt) << line;
  }
}

TEST(StatusWriter, WithoutALauncherDoesNothing) {
  ::unsetenv("SFTRUN_STATUS_FD");
  StatusWriter writer;
  EXPECT_FALSE(writer.write({}));
  ::setenv("SFTRUN_STATUS_FD", "987", 1);  // not open
  EXPECT_FALSE(StatusWriter().write({}));
  ::unsetenv("SFTRUN_STATUS_FD");
}

TEST(StatusWriter, AFullPipeDropsLinesAndNeverBlocks) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  StatusWriter writer(ends[1]);
  int num_written = 0;
  while (writer.write({.phase = Phase::kTraining})) ++num_written;
  EXPECT_GT(num_written, 100);
  ::close(ends[0]);
  EXPECT_FALSE(writer.write({}));  // no SIGPIPE either
  ::close(ends[1]);
}

TEST(ErrorFile, IsReadAsWrittenAndNotOverwritten) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "error.json";
  ::setenv("SFTRUN_ERROR_FILE", path.c_str(), 1);
  ::setenv("RANK", "3", 1);
  ::setenv("LOCAL_RANK", "1", 1);
  EXPECT_TRUE(write_error_file("error: out of \"memory\"\n  fix: less", 4, 17));
  EXPECT_FALSE(write_error_file("error: a later one", 5));
  const auto error = read_error_file(path);
  for (const char* name : {"SFTRUN_ERROR_FILE", "RANK", "LOCAL_RANK"}) ::unsetenv(name);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->rank, 3);
  EXPECT_EQ(error->local_rank, 1);
  EXPECT_EQ(error->pid, ::getpid());
  EXPECT_EQ(error->step, 17);
  EXPECT_EQ(error->message, "error: out of \"memory\"\n  fix: less");
  EXPECT_EQ(error->exit_code, 4);
  EXPECT_FALSE(error->peer_lost);
  const auto now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(error->time, now, 5);
}

TEST(ErrorFile, GoesThroughTheStatusPipeToo) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::setenv("SFTRUN_STATUS_FD", std::to_string(ends[1]).c_str(), 1);
  ::setenv("SFTRUN_ERROR_FILE", "/proc/error.json", 1);  // cannot be written
  const std::string message = "error: no \"space\"\n  at   " + std::string(5000, 'x');
  EXPECT_FALSE(write_error_file(message, 5, 17, /*peer_lost=*/true));
  for (const char* name : {"SFTRUN_STATUS_FD", "SFTRUN_ERROR_FILE"}) ::unsetenv(name);
  ::close(ends[1]);
  std::string text(20'000, '\0');
  const ssize_t got = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  ASSERT_GT(got, 0);
  const auto error = parse_error_line(std::string_view(text).substr(0, static_cast<size_t>(got)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, message);
  EXPECT_EQ(error->step, 17);
  EXPECT_TRUE(error->peer_lost);
  EXPECT_FALSE(parse_status(std::string_view(text).substr(0, static_cast<size_t>(got))));
  EXPECT_FALSE(parse_error_line(to_json_line({.phase = Phase::kTraining})));
}

TEST(ErrorFile, ALostPeerIsRecognised) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "error.json";
  ::setenv("SFTRUN_ERROR_FILE", path.c_str(), 1);
  for (const char* words : {"all_reduce: Connection closed by peer [127.0.0.1]:4711",
                            "barrier failed: Failed to recv, got 0 bytes. Connection was likely "
                            "closed. Did the remote server shutdown or crash?"}) {
    EXPECT_TRUE(write_error_file(std::string("error: ") + words, 5));
    EXPECT_TRUE(read_error_file(path)->peer_lost) << words;
    std::filesystem::remove(path);
  }
  ::unsetenv("SFTRUN_ERROR_FILE");
}

TEST(ErrorFile, WithoutALauncherOrADirectoryNothingHappens) {
  ::unsetenv("SFTRUN_ERROR_FILE");
  EXPECT_FALSE(write_error_file("error: x", 5));
  EXPECT_FALSE(write_error_file("/nonexistent/error.json", WorkerError{}));
  EXPECT_EQ(read_error_file("/nonexistent/error.json"), std::nullopt);
}

TEST(StopSignals, TheFirstSetsAFlag) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), {SIGTERM, 75}, {SIGUSR1, 75}}) {
    const StopSignals stop;
    EXPECT_FALSE(stop.requested());
    EXPECT_EQ(stop.exit_code(), 0);
    ::raise(signal);
    ::raise(SIGTERM);  // at once: the same request
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(stop.signal(), signal);
    EXPECT_EQ(stop.exit_code(), code);
  }
}

TEST(StopSignals, WhatTheProcessWasStartedToIgnoreStaysIgnored) {
  ::signal(SIGUSR1, SIG_IGN);
  {
    const StopSignals stop;
    ::raise(SIGUSR1);
    EXPECT_FALSE(stop.requested());
  }
  ::signal(SIGUSR1, SIG_DFL);
  ::signal(SIGINT, SIG_IGN);  // a shell's background job
  {
    const StopSignals stop;
    ::kill(::getpid(), SIGINT);
    EXPECT_TRUE(stop.requested());
  }
  ::signal(SIGINT, SIG_DFL);
}

TEST(StopSignals, TheSecondEndsTheProcessWithTheFirstOnesCode) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const StopSignals stop;
    ::raise(SIGINT);
    sleep_s(StopSignals::kSameRequestS + 0.1);
    ::raise(SIGTERM);
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

TEST(WorkerEnv, ReadsTorchrunsVariables) {
  const WorkerEnv worker = worker_env({{"RANK", "5"},
                                       {"WORLD_SIZE", "8"},
                                       {"LOCAL_RANK", "1"},
                                       {"LOCAL_WORLD_SIZE", "4"},
                                       {"GROUP_RANK", "1"},
                                       {"MASTER_ADDR", "node-a"},
                                       {"MASTER_PORT", "29500"}});
  EXPECT_EQ(worker.rank, 5);
  EXPECT_EQ(worker.world_size, 8);
  EXPECT_EQ(worker.local_rank, 1);
  EXPECT_EQ(worker.local_world_size, 4);
  EXPECT_EQ(worker.node_rank, 1);
  EXPECT_EQ(worker.master_addr, "node-a");
  EXPECT_EQ(worker.master_port, 29500);
  EXPECT_FALSE(worker.supervised);
  EXPECT_TRUE(worker_env({{"SFTRUN_STATUS_FD", "7"}}).supervised);
  EXPECT_TRUE(speaks_for_run({}));
  EXPECT_TRUE(speaks_for_run({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
  EXPECT_FALSE(speaks_for_run({{"RANK", "1"}, {"WORLD_SIZE", "2"}}));
  EXPECT_FALSE(speaks_for_run({{"RANK", "0"}, {"SFTRUN_STATUS_FD", "7"}}));
  EXPECT_EQ(worker_env({}).world_size, 1);
}

TEST(WorkerEnv, NamesTheVariableThatIsWrong) {
  const auto message = [](const Environment& env) -> std::string {
    try {
      worker_env(env);
      return "";
    } catch (const ConfigError& error) {
      return error.message();
    }
  };
  EXPECT_EQ(message({{"RANK", "0"}}), "WORLD_SIZE is not set, but RANK and WORLD_SIZE are");
  EXPECT_EQ(message({{"RANK", "x"}, {"WORLD_SIZE", "2"}}),
            "RANK=x is not a number from 0 to 2147483647");
  EXPECT_EQ(message({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK=2 is not below WORLD_SIZE=2");
  EXPECT_EQ(message({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
            "MASTER_PORT is not set, but RANK and WORLD_SIZE are");
}

}  // namespace
}  // namespace sftrun::launch::testing
