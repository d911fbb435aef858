#include "run_record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/open_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "sftrun/observe/system.h"

namespace sftrun::observe {
namespace fs = std::filesystem;
namespace {

/// "[12:03:04.118] [warning] text" in a rank's log.
std::optional<LoggedWarning> warning_in(std::string_view line) {
  constexpr size_t kTimeLength = std::string_view("[12:03:04.118] ").size();
  if (line.size() <= kTimeLength || line.front() != '[') return std::nullopt;
  constexpr size_t kMaxBytes = 1000;
  std::string_view rest = line.substr(kTimeLength);
  for (const auto& [mark, is_error] : {std::pair<std::string_view, bool>{"[warning] ", false},
                                       std::pair<std::string_view, bool>{"[error] ", true}}) {
    if (!rest.starts_with(mark)) continue;
    rest.remove_prefix(mark.size());
    return LoggedWarning{
        .text = std::string(utf8_prefix(trim(rest), kMaxBytes)), .count = 1, .is_error = is_error};
  }
  return std::nullopt;
}

std::vector<fs::path> files_with(const fs::path& directory, std::string_view extension) {
  std::vector<fs::path> files;
  for (const fs::path& entry : readable_entries_of(directory))
    if (entry.extension() == extension && is_plain_file(entry)) files.push_back(entry);
  std::sort(files.begin(), files.end());
  return files;
}

/// "(step 40)" or "step 40: …" in a warning.
struct NamedStep {
  size_t begin = 0, end = 0;  // of the number
  int64_t step = 0;
};

std::optional<NamedStep> named_step(const std::string& text) {
  constexpr std::string_view kWord = "step ";
  for (size_t found = text.find(kWord); found != std::string::npos;
       found = text.find(kWord, found + 1)) {
    const bool is_word = found == 0 || text[found - 1] == ' ' || text[found - 1] == '(';
    NamedStep named{.begin = found + kWord.size()};
    const char* const begin = text.data() + named.begin;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), named.step);
    named.end = named.begin + static_cast<size_t>(end - begin);
    if (is_word && error == std::errc()) return named;
  }
  return std::nullopt;
}

/// Equal for warnings that differ in their step alone.
std::string without_step(const std::string& text, const std::optional<NamedStep>& named) {
  return named ? text.substr(0, named->begin) + text.substr(named->end) : text;
}

/// Equal warnings of several ranks, and of several steps, are one.
void read_logs(RunRecord& run) {
  constexpr size_t kMax = 20;
  std::map<std::string, size_t> places;  // of kinds in run.warnings
  for (const fs::path& log : files_with(run.directory / "logs", ".log")) {
    if (log.filename() == "callbacks.log") continue;  // what the user's commands print
    std::ifstream file(log, std::ios::binary);
    for (std::string line; std::getline(file, line);) {
      const auto warning = warning_in(line);
      if (!warning) continue;
      const std::optional<NamedStep> named = named_step(warning->text);
      const std::string kind = without_step(warning->text, named);
      if (const auto found = places.find(kind); found != places.end()) {
        LoggedWarning& first = run.warnings[found->second];
        ++first.count;
        if (warning->text != first.text)
          first.last_step = std::max(first.last_step.value_or(0), named->step);
      } else if (run.warnings.size() < kMax) {
        places[kind] = run.warnings.size();
        run.warnings.push_back(*warning);
      } else {
        ++run.num_more_warnings;
      }
    }
  }
}

/// What a record asks, and the answer that it has itself, if it has one.
struct Asked {
  std::string prompt, reference;
};

std::string text_at(const nlohmann::json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end() && found->is_string())
      return found->get<std::string>();
  return {};
}

/// The last turn of somebody else than the assistant, and the assistant's after it.
Asked asked_in(const nlohmann::json& messages) {
  Asked asked;
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if (!message->is_object()) return {};
    const std::string role = text_at(*message, {"role", "from"}),
                      text = text_at(*message, {"content", "value"});
    const bool is_answer = role == "assistant" || role == "gpt" || role == "model";
    (is_answer ? asked.reference : asked.prompt) = text;
    if (!is_answer) break;
  }
  return asked;
}

Asked asked_by(const nlohmann::json& record) {
  for (const char* key : {"messages", "conversations", "prompt"})
    if (const auto found = record.find(key); found != record.end() && found->is_array())
      return asked_in(*found);
  return {.prompt = text_at(record, {"prompt", "instruction", "text"}),
          .reference = text_at(record, {"completion", "output"})};
}

/// Files that `sftrun generate --output RUN/answers/NAME.jsonl` wrote.
void read_answers(RunRecord& run) {
  constexpr size_t kMaxAnswers = 100, kMaxFiles = 8;
  for (const fs::path& path : files_with(run.directory / "answers", ".jsonl")) {
    AnswerFile answers{.name = path.stem().string(), .answers = {}};
    std::ifstream file(path, std::ios::binary);
    for (std::string line; answers.answers.size() < kMaxAnswers && std::getline(file, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!record.is_object() || !record.contains("generated")) break;  // such as the questions
      const Asked asked = asked_by(record);
      answers.answers.push_back({asked.prompt, asked.reference, text_at(record, {"generated"})});
    }
    if (!answers.answers.empty() && run.answers.size() < kMaxFiles)
      run.answers.push_back(std::move(answers));
  }
  // "before" comes first; other names, as of checkpoints, stay in alphabetical order.
  std::stable_partition(run.answers.begin(), run.answers.end(),
                        [](const AnswerFile& one) { return one.name == "before"; });
}

/// Whether the process that holds a run's lock while it lives has ended. Only this machine's locks
/// can be asked: the file names the process and its machine ("pid 4242 on node-a").
bool has_lost_its_launcher(const fs::path& directory) {
  const fs::path file = directory / ".lock";
  if (!is_plain_file(file)) return false;
  std::ifstream owner(file, std::ios::binary);
  std::string line;
  if (!std::getline(owner, line) || !line.ends_with(" on " + host_name())) return false;
  const OpenedFile lock = open_file(file, O_RDONLY);
  if (lock.fd < 0) return false;
  const bool is_free = ::flock(lock.fd, LOCK_SH | LOCK_NB) == 0;
  ::close(lock.fd);
  return is_free;
}

}  // namespace

std::string RunRecord::setting(const std::string& key) const {
  for (const auto& [name, value] : settings)
    if (name == key) return value;
  return {};
}

RunRecord read_run_record(const fs::path& directory) {
  const fs::path metrics = directory / "metrics.jsonl", json = directory / "run.json",
                 yaml = directory / "config.resolved.yaml";
  if (!leads_to_file(metrics) && !leads_to_file(json)) {
    throw DataError("not a run directory: it has neither metrics.jsonl nor run.json",
                    directory.string(), "name the output.dir of a run, such as runs/run_lora");
  }
  RunRecord run{.directory = directory};
  const fs::path whole = absolute_path(directory).lexically_normal();
  run.name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  const auto read = [&](const fs::path& file, auto&& reader) {
    try {
      if (leads_to_file(file)) reader();
    } catch (const Error& error) {
      run.unreadable.push_back(
          fmt::format("{}: {}", file.filename().string(), excerpt(error.message())));
    }
  };
  read(json, [&] {
    run.report = read_run_report(json);
    if (run.report->status == "running" && has_lost_its_launcher(directory))
      run.report->status = kKilled;
  });
  read(metrics, [&] { run.metrics = read_metrics_table(metrics); });
  read(yaml, [&] { run.settings = config::read_settings_text(yaml); });
  read_logs(run);
  read_answers(run);
  return run;
}

size_t fullest_rank(const RunReport& report) {
  const auto fullest = std::max_element(
      report.ranks.begin(), report.ranks.end(),
      [](const RankReport& a, const RankReport& b) { return a.bytes.total() < b.bytes.total(); });
  return static_cast<size_t>(fullest - report.ranks.begin());
}

}  // namespace sftrun::observe
