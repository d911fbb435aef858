#include "sftrun/launch/error_file.h"

#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "parse_int.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/file.h"

namespace sftrun::launch {
namespace {

using Json = nlohmann::ordered_json;

int int_from_env(const char* name) {
  const char* text = std::getenv(name);
  return text ? static_cast<int>(parse_int(text).value_or(0)) : 0;
}

/// Messages of c10d, Gloo and NCCL for a peer that is gone.
bool is_about_a_lost_peer(const std::string& message) {
  for (const char* words :
       {"Connection closed by peer", "Connection reset by peer", "Broken pipe", "ncclRemoteError",
        "Socket closed", "recvValue failed", "Connection was likely closed"}) {
    if (message.find(words) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

bool write_error_file(const std::string& message, int exit_code, std::optional<int64_t> step,
                      bool peer_lost) noexcept {
  const char* path = std::getenv("SFTRUN_ERROR_FILE");
  if (!path || !*path) return false;
  try {
    if (std::filesystem::exists(path)) return false;
    return write_error_file(path, {.rank = int_from_env("RANK"),
                                   .local_rank = int_from_env("LOCAL_RANK"),
                                   .pid = static_cast<int>(::getpid()),
                                   .time = unix_seconds(),
                                   .step = step,
                                   .message = message,
                                   .exit_code = exit_code,
                                   .peer_lost = peer_lost || is_about_a_lost_peer(message)});
  } catch (...) {
    return false;
  }
}

bool write_error_file(const std::filesystem::path& path, const WorkerError& error) noexcept {
  try {
    Json json;
    json["rank"] = error.rank;
    json["local_rank"] = error.local_rank;
    json["pid"] = error.pid;
    json["time"] = error.time;
    json["step"] = error.step ? Json(*error.step) : Json();
    json["message"] = error.message;
    json["exit_code"] = error.exit_code;
    json["peer_lost"] = error.peer_lost;
    write_file_atomically(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return true;
  } catch (...) {
    return false;
  }
}

std::optional<WorkerError> read_error_file(const std::filesystem::path& path) {
  try {
    const Json json = Json::parse(read_text_file(path));
    WorkerError error{.rank = json.at("rank"),
                      .local_rank = json.at("local_rank"),
                      .pid = json.at("pid"),
                      .time = json.at("time"),
                      .message = json.at("message"),
                      .exit_code = json.at("exit_code"),
                      .peer_lost = json.value("peer_lost", false)};
    if (const auto& step = json.at("step"); step.is_number()) error.step = step.get<int64_t>();
    return error;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace sftrun::launch
