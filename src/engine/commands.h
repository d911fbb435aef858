#pragma once

#include <nlohmann/json.hpp>
#include <string>

/// The engine's commands. Each takes the request of app/engine_api.h and returns the process's exit
/// code.
namespace sftrun::engine {

struct Failure {
  int code = 0;      ///< the process's exit code
  std::string text;  ///< the message that was reported
};
/// Call inside a catch block: reports the exception to the user, the rank's log and the launcher. An
/// error that names a key of the configuration also names where the key was set.
/// @param command for the advice about memory, with its request; null: unknown
Failure report_failure(const std::string& command, const nlohmann::ordered_json& request = nullptr);

int run_worker(const nlohmann::ordered_json& request);
int run_generate(const nlohmann::ordered_json& request);
int run_eval(const nlohmann::ordered_json& request);
int run_score(const nlohmann::ordered_json& request);
int run_serve(const nlohmann::ordered_json& request);
int run_chat(const nlohmann::ordered_json& request);
int run_merge(const nlohmann::ordered_json& request);
int run_quantize(const nlohmann::ordered_json& request);
int run_bench(const nlohmann::ordered_json& request);
int run_all_reduce(const nlohmann::ordered_json& request);

}  // namespace sftrun::engine
