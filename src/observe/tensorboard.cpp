#include "sftrun/observe/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "event_proto.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/observe/system.h"
#include "tf_record.h"

namespace sftrun::observe {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kEventFilePrefix = "events.out.tfevents.";

void flatten(const nlohmann::ordered_json& settings, const std::string& prefix,
             std::vector<std::pair<std::string, HparamValue>>& flat) {
  for (const auto& [key, value] : settings.items()) {
    const std::string name = prefix + key;
    if (value.is_object())
      flatten(value, name + ".", flat);
    else if (value.is_boolean())
      flat.emplace_back(name, value.get<bool>());
    else if (value.is_number())
      flat.emplace_back(name, value.get<double>());
    else if (!value.is_null())
      flat.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

}  // namespace

/// An append-only file and the bytes that are not written yet.
struct EventWriter::File {
  fs::path path;
  int fd = -1;
  std::string pending;

  ~File() {
    if (fd >= 0) ::close(fd);
  }
  void write_pending() {
    std::string_view rest = pending;
    while (!rest.empty()) {
      const ssize_t written = ::write(fd, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        throw DeviceError(fmt::format("cannot write: {}", std::strerror(errno)), path.string(),
                          "free disk space, or set output.tensorboard=false");
      }
      rest.remove_prefix(static_cast<size_t>(written));
    }
    pending.clear();
  }
};

EventWriter::EventWriter(const fs::path& directory, std::optional<int64_t> resumed_from) {
  make_directories(directory);
  if (resumed_from) truncate_events_to_step(directory, *resumed_from);
  const double now = unix_seconds();
  auto file = std::make_unique<File>();
  const std::string name =
      fmt::format("{}{:.0f}.{}.{}", kEventFilePrefix, now, host_name(), ::getpid());
  file->path = directory / name;
  // Readers process files in the order of their names, and this process may open two files within
  // one second.
  for (int copy = 1; leads_to_file(file->path); ++copy)
    file->path = directory / fmt::format("{}.{}", name, copy);
  file->fd = ::open(file->path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (file->fd < 0) {
    throw DeviceError(fmt::format("cannot create: {}", std::strerror(errno)), file->path.string());
  }
  file_ = std::move(file);
  append_tf_record(file_->pending, encode_file_version(now));
  if (resumed_from) append_tf_record(file_->pending, encode_session_start(now, *resumed_from + 1));
  flush();
}

EventWriter::EventWriter() = default;

EventWriter::~EventWriter() {
  if (!file_) return;
  try {
    flush();
  } catch (const Error&) {  // ignored: the run's own errors matter more
  }
}
EventWriter::EventWriter(EventWriter&&) noexcept = default;
EventWriter& EventWriter::operator=(EventWriter&&) noexcept = default;

void EventWriter::scalar(std::string_view tag, double value, int64_t step) {
  if (!file_) return;
  append_tf_record(file_->pending,
                   encode_scalar(unix_seconds(), step, tag, static_cast<float>(value)));
}

void EventWriter::text(std::string_view tag, std::string_view markdown, int64_t step) {
  if (!file_) return;
  append_tf_record(file_->pending, encode_text(unix_seconds(), step, tag, markdown));
}

void EventWriter::hparams(const nlohmann::ordered_json& settings, int64_t step) {
  if (!file_) return;
  std::vector<std::pair<std::string, HparamValue>> flat;
  flatten(settings, "", flat);
  append_tf_record(file_->pending, encode_hparams(unix_seconds(), step, flat));
}

void EventWriter::flush() {
  if (file_) file_->write_pending();
}

void truncate_events_to_step(const fs::path& directory, int64_t step) {
  if (!is_folder(directory)) return;
  for (const fs::path& path : entries_of(directory)) {
    if (!path.filename().string().starts_with(kEventFilePrefix)) continue;
    const std::string content = read_text_file(path);
    std::string kept;
    for (const std::string_view record : read_tf_records(content)) {
      const auto record_step = event_step(record);
      if (record_step && *record_step <= step) append_tf_record(kept, record);
    }
    if (kept.empty()) {
      remove_entry(path);
    } else if (kept.size() != content.size()) {
      shrink_file(path, content, kept);
    }
  }
}

}  // namespace sftrun::observe
