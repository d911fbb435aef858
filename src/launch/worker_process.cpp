#include "worker_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "sftrun/core/clock.h"
#include "sftrun/core/strings.h"

namespace sftrun::launch {
namespace {

constexpr size_t kKeptLines = 30;

/// All bytes that can be read without waiting. Sets `closed` at the end of the stream.
std::string read_available(int fd, bool& closed) {
  std::string bytes;
  char buffer[1 << 14];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got > 0) bytes.append(buffer, static_cast<size_t>(got));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return bytes;
    if (got <= 0) {
      closed = true;
      return bytes;
    }
    if (bytes.size() > (1 << 20)) return bytes;  // then the other workers are read
  }
}

ChildSpec with_activity(ChildSpec spec, const Activity& activity) {
  spec.activity = activity.descriptor();
  return spec;
}

/// A file of /proc; "" if it cannot be read.
std::string read_proc(pid_t pid, const char* name) {
  std::ifstream file(fmt::format("/proc/{}/{}", pid, name));
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

/// What follows the name in /proc/…/stat, "4242 (sftrun) T 1 …": the state is first. "" if unknown.
std::string stat_fields(pid_t pid) {
  const std::string stat = read_proc(pid, "stat");
  const size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos ? "" : stat.substr(name_end + 2);
}

char state_in(const std::string& fields) {
  return fields.empty() ? '?' : fields.front();
}

}  // namespace

WorkerProcess::WorkerProcess(ChildSpec spec, const Options& options, Console& console)
    : options_(options),
      console_(console),
      log_(options.log),
      child_(start_child(with_activity(std::move(spec), activity_))),
      out_filter_(options.filter, Stream::kOut),
      err_filter_(options.filter, Stream::kErr) {}

WorkerProcess::~WorkerProcess() {
  if (!is_running()) return;
  kill_group();
  while (::waitpid(child_.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::vector<int> WorkerProcess::descriptors() const {
  std::vector<int> fds;
  for (const UniqueFd* fd : {&child_.out, &child_.err, &child_.status}) {
    if (*fd) fds.push_back(fd->get());
  }
  return fds;
}

void WorkerProcess::read_pipes() {
  read_stream(child_.out, out_, out_filter_, Stream::kOut);
  read_stream(child_.err, err_, err_filter_, Stream::kErr);
  read_status();
}

void WorkerProcess::read_stream(UniqueFd& fd, LineSplitter& splitter, LineFilter& filter,
                                Stream stream) {
  if (!fd) return;
  bool closed = false;
  const std::string bytes = read_available(fd.get(), closed);
  const auto take = [&](std::string_view line) { take_line(line, filter, stream); };
  splitter.add(bytes, take);
  if (!closed) return;
  splitter.finish(take);
  fd.reset();
}

void WorkerProcess::read_status() {
  if (!child_.status) return;
  bool closed = false;
  const std::string bytes = read_available(child_.status.get(), closed);
  status_.add(bytes, [&](std::string_view line) {
    if (const auto status = parse_status(line)) {
      newest_status_ = last_status_ = status;
      has_trained_ = has_trained_ || status->phase >= Phase::kTraining;
    }
    if (!error_) error_ = parse_error_line(line);
  });
  if (closed) child_.status.reset();
}

bool WorkerProcess::is_stopped() const {
  if (!is_running()) return false;
  const char state = state_in(stat_fields(child_.pid));
  return state == 'T' || state == 't';
}

ProcessUse WorkerProcess::use() const {
  constexpr size_t kUserTicks = 11, kSystemTicks = 12;  // after the name: proc(5) counts from pid
  if (!is_running()) return {};
  const std::vector<std::string> fields = split(stat_fields(child_.pid), ' ');
  ProcessUse use{.is_in_kernel = state_in(fields.front()) == 'D'};
  if (fields.size() <= kSystemTicks) return use;
  const auto ticks = [&](size_t field) { return std::strtod(fields[field].c_str(), nullptr); };
  use.cpu_s =
      (ticks(kUserTicks) + ticks(kSystemTicks)) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::istringstream io(read_proc(child_.pid, "io"));  // "rchar: 12", also of cached files
  for (std::string name; io >> name;) {
    uint64_t bytes = 0;
    io >> bytes;
    if (name == "rchar:" || name == "wchar:") use.file_bytes += bytes;
  }
  return use;
}

std::string WorkerProcess::stack() const {
  if (!is_running()) return {};
  std::string text = is_stopped() ? "" : activity_.stack(child_.pid);
  const std::string place = read_proc(child_.pid, "wchan");
  if (!place.empty() && place != "0") text = "kernel: " + place + (text.empty() ? "" : "\n") + text;
  return text;
}

void WorkerProcess::note(std::string_view text) {
  for (const std::string& line : split(text, '\n')) log_line(line);
}

void WorkerProcess::take_line(std::string_view line, LineFilter& filter, Stream stream) {
  log_line(line);
  last_lines_.emplace_back(line.substr(0, 2000));
  if (last_lines_.size() > kKeptLines) last_lines_.pop_front();
  if (const auto shown = filter.show(line)) console_.print(stream, *shown);
}

void WorkerProcess::log_line(std::string_view line) {
  if (!log_.is_open()) return;
  try {
    log_.append(line);
  } catch (const Error& error) {  // a full disk stops the log, not the run
    log_ = LineFile();
    console_.print(Stream::kErr,
                   fmt::format("warning: cannot write the log of rank {} any more\n{}",
                               options_.rank, error.what()));
  }
}

std::optional<Status> WorkerProcess::take_status() {
  auto status = std::move(newest_status_);
  newest_status_.reset();
  return status;
}

void WorkerProcess::signal(int signal) const {
  if (is_running()) ::kill(child_.pid, signal);
}

void WorkerProcess::kill_now() {
  if (!is_running()) return;
  was_killed_ = true;
  kill_group();
}

void WorkerProcess::kill_group() const {
  ::kill(-child_.pid, SIGKILL);
  ::kill(child_.pid, SIGKILL);  // a worker that moved itself to another group
}

bool WorkerProcess::reap() {
  if (!is_running()) return false;
  siginfo_t info{};
  // It is not reaped yet, so no other process can have its id or its group's id.
  if (::waitid(P_PID, static_cast<id_t>(child_.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return false;
  if (info.si_pid != child_.pid) return false;
  const double time = unix_seconds();
  kill_group();
  int status = 0;
  while (::waitpid(child_.pid, &status, 0) < 0 && errno == EINTR) {
  }
  read_pipes();
  const auto take_rest = [&](LineFilter& filter, Stream stream) {
    return [this, &filter, stream](std::string_view line) { take_line(line, filter, stream); };
  };
  out_.finish(take_rest(out_filter_, Stream::kOut));
  err_.finish(take_rest(err_filter_, Stream::kErr));
  child_.out.reset();
  child_.err.reset();
  child_.status.reset();
  end_ = WorkerEnd{.rank = options_.rank,
                   .local_rank = options_.local_rank,
                   .pid = child_.pid,
                   .wait_status = status,
                   .time = time,
                   .error = error_ ? error_ : read_error_file(options_.error_file),
                   .last_status = last_status_,
                   .log = options_.log,
                   .last_lines = {last_lines_.begin(), last_lines_.end()}};
  return true;
}

}  // namespace sftrun::launch
