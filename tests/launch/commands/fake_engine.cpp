// Stands in for libsftrun_engine.so (SFTRUN_ENGINE): keeps what it was asked for and where it
// stands in the job.
//   FAKE_ENGINE_DIR  gets request-<rank>.json and environment-<rank>.txt     FAKE_ENGINE_EXIT  what
//   to return     FAKE_ENGINE_REPORT  a run.json that says that the run is running
//   FAKE_ENGINE_HANGS  it does not end, whatever signals come
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#include "sftrun/launch/worker_env.h"

extern "C" int sftrun_engine_run(const char* command, const char* request) {
  const auto worker = sftrun::launch::worker_env();
  const std::string directory = std::getenv("FAKE_ENGINE_DIR");
  const std::string rank = std::to_string(worker.rank);
  std::ofstream(directory + "/request-" + rank + ".json") << request;
  std::ofstream environment(directory + "/environment-" + rank + ".txt");
  for (const auto& [name, value] : sftrun::launch::current_environment())
    environment << name << "=" << value << "\n";
  std::printf("%s %d of %d\n", command, worker.rank, worker.world_size);
  std::fflush(stdout);
  const char* report = std::getenv("FAKE_ENGINE_REPORT");
  if (report)
    std::ofstream(report) << "{\"status\":\"running\",\"started_at\":" << std::time(nullptr) + 1
                          << "}";
  if (std::getenv("FAKE_ENGINE_HANGS")) {
    for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_IGN);
    std::ofstream(directory + "/hangs-" + rank).flush();
    for (;;) ::pause();
  }
  const char* code = std::getenv("FAKE_ENGINE_EXIT");
  if (code) std::fprintf(stderr, "error: as told\n");
  return code ? std::atoi(code) : 0;
}
