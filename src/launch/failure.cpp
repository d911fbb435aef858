#include "failure.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <tuple>

#include "line_filter.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::launch {
namespace {

constexpr size_t kShownLines = 10;

double time_of(const WorkerEnd& end) {
  return end.error ? end.error->time : end.time;
}

struct Rendered {
  std::string message, where, fix;
};

/// The parts of a rendered error. A report of several errors is kept whole, as the message.
Rendered parse_rendered_error(std::string_view text) {
  constexpr std::string_view kError = "error: ", kWhere = "\n  at   ", kFix = "\n  fix: ";
  text = trim(text);
  if (text.starts_with(kError)) text.remove_prefix(kError.size());
  Rendered parts;
  if (text.find("\nerror: ") != std::string_view::npos) return {.message = std::string(text)};
  if (const size_t fix = text.find(kFix); fix != std::string_view::npos) {
    parts.fix = text.substr(fix + kFix.size());
    text = text.substr(0, fix);
  }
  if (const size_t where = text.find(kWhere); where != std::string_view::npos) {
    parts.where = text.substr(where + kWhere.size());
    text = text.substr(0, where);
  }
  parts.message = text;
  return parts;
}

/// The worker's error, from its error file, or the last error in its log.
std::optional<Rendered> words_of(const WorkerEnd& end) {
  if (end.error && !trim(end.error->message).empty())
    return parse_rendered_error(end.error->message);
  const auto is_error = [](const std::string& line) { return line.starts_with("error: "); };
  const auto last = std::find_if(end.last_lines.rbegin(), end.last_lines.rend(), is_error);
  if (last == end.last_lines.rend()) return std::nullopt;
  std::string text = *last;
  for (auto line = last.base(); line != end.last_lines.end() && line->starts_with("  "); ++line) {
    text += "\n" + *line;
  }
  return parse_rendered_error(text);
}

std::string how_it_ended(const WorkerEnd& end) {
  if (WIFSIGNALED(end.wait_status)) {
    const int signal = WTERMSIG(end.wait_status);
    const char* name = ::sigabbrev_np(signal);
    return fmt::format("killed by SIG{} ({})", name ? name : std::to_string(signal),
                       ::strsignal(signal));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(end.wait_status));
}

std::string list_of(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(std::to_string(rank));
  return join(names, ", ");
}

/// Number of lines of the log before the final error, which is already in the message.
size_t lines_before_error(const std::vector<std::string>& lines) {
  size_t count = lines.size();
  while (count > 0 && lines[count - 1].starts_with("  ")) --count;
  return count > 0 && lines[count - 1].starts_with("error: ") ? count - 1 : lines.size();
}

std::string tail_of_log(const WorkerEnd& end) {
  std::vector<std::string> lines = end.last_lines;
  lines.resize(lines_before_error(lines));
  std::erase_if(lines, is_stack_trace);
  if (lines.empty()) return {};
  std::string text = "\n  last lines of its log:";
  for (size_t i = lines.size() - std::min(lines.size(), kShownLines); i < lines.size(); ++i)
    text += "\n    | " + lines[i];
  return text;
}

std::string who(const WorkerEnd& end) {
  return fmt::format("rank {} (local_rank {}, pid {})", end.rank, end.local_rank, end.pid);
}

/// The step in the worker's error, else its last reported activity.
std::string when(const WorkerEnd& end) {
  if (end.error && end.error->step) return fmt::format(" at step {}", *end.error->step);
  if (!end.last_status) return {};
  std::string text = fmt::format(" while {}", phase_name(end.last_status->phase));
  const Phase phase = end.last_status->phase;
  const bool counts_steps = phase != Phase::kGenerating && phase != Phase::kJudging;  // but answers
  if (counts_steps && end.last_status->step > 0)
    text += fmt::format(", after step {}", end.last_status->step);
  return text;
}

Error killed_for_memory(const WorkerEnd& end, const std::string& fix) {
  return OutOfMemoryError(
      fmt::format("out of memory: the kernel's OOM killer took {}", who(end)), end.log.string(),
      fmt::format("{}; or start fewer workers (--nproc-per-node), or raise the memory limit", fix));
}

/// 2, 3 or 4. The error file comes first, because the launcher's SIGTERM may have arrived before
/// the worker exited.
std::optional<ExitCode> users_code(const WorkerEnd& end) {
  for (const ExitCode code : {ExitCode::kUsage, ExitCode::kData, ExitCode::kOutOfMemory}) {
    const int number = static_cast<int>(code);
    if (end.error ? end.error->exit_code == number : has_exited_with(end, number)) return code;
  }
  return std::nullopt;
}

bool has_crashed(const WorkerEnd& end) {
  return WIFSIGNALED(end.wait_status) && WTERMSIG(end.wait_status) != SIGTERM &&
         WTERMSIG(end.wait_status) != SIGKILL;
}

}  // namespace

bool has_exited_with(const WorkerEnd& end, int code) {
  return WIFEXITED(end.wait_status) && WEXITSTATUS(end.wait_status) == code;
}

bool has_stopped(const WorkerEnd& end) {
  return has_exited_with(end, static_cast<int>(ExitCode::kStopped)) ||
         has_exited_with(end, static_cast<int>(ExitCode::kInterrupted));
}

bool has_failed(const WorkerEnd& end) {
  return !has_exited_with(end, 0) && !has_stopped(end);
}

const WorkerEnd* first_failure(const std::vector<WorkerEnd>& ends) {
  // A rank that wrote its own error may have been told to end before it exited.
  const auto order = [](const WorkerEnd& end) {
    const bool lost_a_peer = end.error && end.error->peer_lost;
    return std::tuple(end.was_asked_to_stop && (!end.error || lost_a_peer), lost_a_peer,
                      time_of(end));
  };
  const WorkerEnd* first = nullptr;
  for (const WorkerEnd& end : ends) {
    if (has_failed(end) && (!first || order(end) < order(*first))) first = &end;
  }
  return first;
}

Error describe_failure(const WorkerEnd& end, const std::vector<int>& stopped_ranks,
                       double stopped_after_s, const std::string& stall,
                       const std::string& memory_fix, const WorkWords& work) {
  const auto words = words_of(end);
  if (const auto code = users_code(end)) {
    if (words) return Error(*code, words->message, words->where, words->fix);
    return Error(*code, who(end) + " " + how_it_ended(end) + tail_of_log(end), end.log.string());
  }
  if (end.oom_killed)
    return killed_for_memory(end, memory_fix.empty() ? work.less_memory : memory_fix);
  std::string message = work.name + " failed; first failure on " + who(end) + when(end);
  message += ": " + (words ? words->message : how_it_ended(end));
  if (words && has_crashed(end)) message += ", then " + how_it_ended(end);
  if (!stall.empty()) message += "\n  before that there was no progress: " + stall;
  message += tail_of_log(end);
  std::string where = words && !words->where.empty() ? words->where + "; " : "";
  where += end.log.string();
  if (!stopped_ranks.empty()) {
    where += fmt::format("; {} {} {} stopped {:.1f} s later", plural("rank", stopped_ranks.size()),
                         list_of(stopped_ranks), stopped_ranks.size() == 1 ? "was" : "were",
                         stopped_after_s);
  }
  return Error(ExitCode::kWorkerFailed, std::move(message), std::move(where),
               words ? words->fix : work.fix);
}

}  // namespace sftrun::launch
