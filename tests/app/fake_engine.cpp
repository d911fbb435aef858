#include <cstdio>
#include <cstring>

#include "sftrun/app/engine_api.h"

/// Stands in for the engine: prints what it was asked, on one line, and returns a code that only it
/// returns.
extern "C" int sftrun_engine_run(const char* command, const char* request) {
  constexpr int kCode = 42;
  std::printf("%s %s\n", command, request);
  std::fflush(stdout);
  return std::strcmp(command, "score") == 0 ? 0 : kCode;
}
