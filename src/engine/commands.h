#pragma once

#include <nlohmann/json.hpp>
#include <string>

/// The engine's commands. Each takes the request of app/engine_api.h and returns the process's exit
/// code.
namespace sftrun::engine {

struct Failure {
  int code = 0;      ///< the process's exit code
  std::string text;  ///< as it was told
};
/// Inside a handler: tells the user, the rank's log and the launcher of the exception being
/// handled. @param command what helps where memory was used up depends on it
Failure report_failure(const std::string& command);

int run_worker(const nlohmann::json& request);
int run_generate(const nlohmann::json& request);
int run_score(const nlohmann::json& request);
int run_merge(const nlohmann::json& request);
int run_quantize(const nlohmann::json& request);
int run_bench(const nlohmann::json& request);

}  // namespace sftrun::engine
