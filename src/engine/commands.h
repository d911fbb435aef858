#pragma once

#include <nlohmann/json.hpp>

/// The engine's commands. Each takes the request of app/engine_api.h and returns the process's exit
/// code.
namespace sftrun::engine {

int run_worker(const nlohmann::json& request);
int run_generate(const nlohmann::json& request);
int run_score(const nlohmann::json& request);
int run_merge(const nlohmann::json& request);
int run_bench(const nlohmann::json& request);

}  // namespace sftrun::engine
