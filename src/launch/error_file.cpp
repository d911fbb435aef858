#include "sftrun/launch/error_file.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "parse_int.h"
#include "pipe_write.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"

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

Json to_json(const WorkerError& error) {
  Json json;
  json["rank"] = error.rank;
  json["local_rank"] = error.local_rank;
  json["pid"] = error.pid;
  json["time"] = error.time;
  json["step"] = error.step ? Json(*error.step) : Json();
  json["message"] = error.message;
  json["exit_code"] = error.exit_code;
  json["peer_lost"] = error.peer_lost;
  return json;
}

WorkerError error_from_json(const Json& json) {
  WorkerError error{.rank = json.at("rank"),
                    .local_rank = json.at("local_rank"),
                    .pid = json.at("pid"),
                    .time = json.at("time"),
                    .message = json.at("message"),
                    .exit_code = json.at("exit_code"),
                    .peer_lost = json.value("peer_lost", false)};
  if (const auto& step = json.at("step"); step.is_number()) error.step = step.get<int64_t>();
  return error;
}

std::string text_of(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// Writes the line to the status pipe. It may wait a moment for the launcher to read.
void send_to_launcher(std::string_view line) {
  constexpr int kPatienceMs = 1000;
  const char* text = std::getenv("SFTRUN_STATUS_FD");
  const auto fd = text ? parse_int(text) : std::nullopt;
  if (!fd) return;
  while (!line.empty()) {
    const ssize_t written = write_without_sigpipe(static_cast<int>(*fd), line);
    if (written > 0) {
      line.remove_prefix(static_cast<size_t>(written));
      continue;
    }
    pollfd pipe{.fd = static_cast<int>(*fd), .events = POLLOUT, .revents = 0};
    if (errno != EAGAIN && errno != EINTR) return;
    if (errno == EAGAIN && ::poll(&pipe, 1, kPatienceMs) <= 0) return;
  }
}

}  // namespace

bool write_error_file(const std::string& message, int exit_code, std::optional<int64_t> step,
                      bool peer_lost) noexcept {
  const char* path = std::getenv("SFTRUN_ERROR_FILE");
  if (!path || !*path) return false;
  try {
    if (leads_to_file(path)) return false;
    const WorkerError error{.rank = int_from_env("RANK"),
                            .local_rank = int_from_env("LOCAL_RANK"),
                            .pid = static_cast<int>(::getpid()),
                            .time = unix_seconds(),
                            .step = step,
                            .message = message,
                            .exit_code = exit_code,
                            .peer_lost = peer_lost || is_about_a_lost_peer(message)};
    send_to_launcher(text_of(Json{{"error", to_json(error)}}, -1) + "\n");
    return write_error_file(path, error);
  } catch (...) {
    return false;
  }
}

bool write_error_file(const std::filesystem::path& path, const WorkerError& error) noexcept {
  try {
    write_file_atomically(path, text_of(to_json(error), 2) + "\n");
    return true;
  } catch (...) {
    return false;
  }
}

std::optional<WorkerError> read_error_file(const std::filesystem::path& path) {
  try {
    return error_from_json(Json::parse(read_text_file(path)));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::optional<WorkerError> parse_error_line(std::string_view line) {
  try {
    return error_from_json(Json::parse(line).at("error"));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace sftrun::launch
