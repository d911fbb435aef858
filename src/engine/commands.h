#pragma once

#include <string>

#include "memory_advice.h"
#include "sftrun/app/command_list.h"

/// The engine's commands. Each takes its request and returns the process's exit code.
namespace sftrun::engine {

struct Failure {
  int code = 0;      ///< the process's exit code
  std::string text;  ///< the message that was reported
};

/// What the report of a failure takes from the request.
struct FailureContext {
  config::Places places;  ///< where keys of its configuration were set
  std::string host_memory_advice = general_memory_advice(Memory::kHost),
              gpu_memory_advice = general_memory_advice(Memory::kGpu);
};
template <class Request>
FailureContext failure_context(const Request& request) {
  FailureContext context{.host_memory_advice = memory_advice(request, Memory::kHost),
                         .gpu_memory_advice = memory_advice(request, Memory::kGpu)};
  if constexpr (requires { request.places; }) context.places = request.places;
  if constexpr (requires { request.ranks; }) context.places = request.ranks.places;
  return context;
}

/// Call inside a catch block: reports the exception to the user, the rank's log and the launcher. An
/// error that names a key of the configuration also names where the key was set.
Failure report_failure(const FailureContext& context);

#define SFTRUN_ROW(name, Request) int run_##name(const app::Request& request);
SFTRUN_ENGINE_COMMANDS(SFTRUN_ROW)
#undef SFTRUN_ROW

}  // namespace sftrun::engine
