#include "sftrun/launch/status.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "parse_int.h"
#include "pipe_write.h"

namespace sftrun::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 9> kPhaseNames = {
    "loading",  "tokenizing", "generating", "judging answers", "fitting",
    "training", "evaluating", "saving",     "running commands"};

void put(Json& json, const char* key, const std::optional<double>& value) {
  if (value && std::isfinite(*value)) json[key] = *value;
}

template <typename T>
std::optional<T> get(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->template get<T>();
}

}  // namespace

std::string_view phase_name(Phase phase) {
  return kPhaseNames[static_cast<size_t>(phase)];
}

std::optional<Phase> parse_phase(std::string_view name) {
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    if (kPhaseNames[i] == name) return static_cast<Phase>(i);
  }
  return std::nullopt;
}

std::string to_json_line(const Status& status) {
  Json json;
  json["phase"] = phase_name(status.phase);
  json["step"] = status.step;
  json["total_steps"] = status.total_steps;
  put(json, "loss", status.loss);
  put(json, "tokens_per_second", status.tokens_per_second);
  put(json, "eta_s", status.eta_s);
  if (status.memory_bytes) json["memory_bytes"] = *status.memory_bytes;
  if (status.memory_used_bytes) json["memory_used_bytes"] = *status.memory_used_bytes;
  put(json, "gpu_percent", status.gpu_percent);
  put(json, "cpu_percent", status.cpu_percent);
  return json.dump();
}

std::optional<Status> parse_status(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto phase = json.find("phase");
  if (phase == json.end() || !phase->is_string()) return std::nullopt;
  const auto parsed = parse_phase(phase->get<std::string>());
  if (!parsed) return std::nullopt;
  return Status{.phase = *parsed,
                .step = get<int64_t>(json, "step").value_or(0),
                .total_steps = get<int64_t>(json, "total_steps").value_or(0),
                .loss = get<double>(json, "loss"),
                .tokens_per_second = get<double>(json, "tokens_per_second"),
                .eta_s = get<double>(json, "eta_s"),
                .memory_bytes = get<uint64_t>(json, "memory_bytes"),
                .memory_used_bytes = get<uint64_t>(json, "memory_used_bytes"),
                .gpu_percent = get<double>(json, "gpu_percent"),
                .cpu_percent = get<double>(json, "cpu_percent")};
}

StatusWriter::StatusWriter() {
  const char* text = std::getenv("SFTRUN_STATUS_FD");
  if (!text) return;
  if (const auto fd = parse_int(text)) *this = StatusWriter(static_cast<int>(*fd));
}

StatusWriter::StatusWriter(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return;
  if (::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return;
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // a child of the worker must not hold the pipe open
  fd_ = fd;
}

bool StatusWriter::write(const Status& status) noexcept {
  if (fd_ < 0) return false;
  try {
    // Lines stay far below PIPE_BUF, so a write is all or nothing.
    const std::string line = to_json_line(status) + "\n";
    const ssize_t written = write_without_sigpipe(fd_, line);
    if (written < 0 && errno != EAGAIN && errno != EINTR) fd_ = -1;
    return written == static_cast<ssize_t>(line.size());
  } catch (...) {
    return false;
  }
}

}  // namespace sftrun::launch
