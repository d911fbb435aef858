#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/line_program.h"
#include "tracker.h"
#include "variables.h"

namespace sftrun::track {

extern const std::string_view kExporter;  // scripts/to_tracker.py (cmake/SftrunEmbed.cmake)

namespace {

using Json = nlohmann::ordered_json;

constexpr double kBeginS = 120, kSendS = 60,
                 kEndS = 600;  // the sender's limits are lower at the end

/// The Python of the active virtual environment, else the one of PATH.
std::string python_of_user() {
  const std::string environment = variable("VIRTUAL_ENV");
  return environment.empty() ? "python3" : environment + "/bin/python3";
}

std::string text_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// scripts/to_tracker.py answers each line.
class Exporter : public Tracker {
 public:
  explicit Exporter(TrackedRun run) : run_(std::move(run)), python_(python_of_user()) {}

  void begin(RunBegin begin) override {
    if (begin.record.is_object()) record_ = std::move(begin.record);
  }

  Position open() override {
    start();
    Json names = {{"project", run_.project}, {"name", run_.name}, {"run_dir", run_.run_dir}};
    if (record_.contains("id")) names["id"] = record_["id"];
    Json settings = Json::object();
    for (const auto& [key, value] : settings_texts(*run_.config)) settings[key] = value;
    const std::vector<std::string> lines = {text_line({{"begin", names}, {"settings", settings}})};
    const Json answer = Json::parse(ask(lines, kBeginS).front(), nullptr, false);
    if (answer.is_object() && answer.contains("missing")) fail_missing();
    for (const auto& [key, value] : answer.items()) record_[key] = value;
    run_.keep(record_);
    if (!std::exchange(is_told_, true)) tell(answer);
    return {record_.value("step", int64_t{-1}), record_.value("evaluation", int64_t{-1})};
  }

  void send(std::span<const TimedLine> lines) override {
    std::vector<std::string> texts;
    for (const TimedLine& one : lines) {
      Json values = Json::object();
      for (const auto& [name, value] : one.line.values) values[name] = value;
      texts.push_back(text_line({{"step", one.line.step}, {"values", values}}));
    }
    const launch::LineAnswers answers = program_->ask(texts, kSendS);
    for (size_t i = 0; i < answers.lines.size() && i < lines.size(); ++i)
      record_[lines[i].line.is_evaluation ? "evaluation" : "step"] = lines[i].line.step;
    run_.keep(record_);
    require_complete(answers);
  }

  void end(RunEnd end) override {
    constexpr const char* kStatus[] = {"finished", "failed", "killed"};
    const std::vector<std::string> lines = {
        text_line({{"end", kStatus[static_cast<size_t>(end)]}})};
    ask(lines, kEndS);
    program_->finish();
  }

 private:
  void start() {
    const std::filesystem::path logs = std::filesystem::path(run_.run_dir) / "logs";
    make_directories(logs);
    log_ = LineFile(logs / fmt::format("{}.log", run_.row->name));
    program_.emplace(launch::LineProgramOptions{
        .command = fmt::format(
            "exec \"$SFTRUN_TRACKER_PYTHON\" -c \"$SFTRUN_TRACKER_CODE\" {} --answer-lines",
            run_.row->name),
        .variables = {{"SFTRUN_TRACKER_PYTHON", python_},
                      {"SFTRUN_TRACKER_CODE", std::string(kExporter)}},
        .should_stop = run_.should_stop,
        .on_error_line = [this](std::string_view line) { log_.append(line); },
        .guard = run_.guard});
  }

  std::vector<std::string> ask(std::span<const std::string> lines, double timeout_s) {
    launch::LineAnswers answers = program_->ask(lines, timeout_s);
    require_complete(answers);
    return std::move(answers.lines);
  }

  void require_complete(const launch::LineAnswers& answers) const {
    using End = launch::LineAnswers::End;
    if (answers.end == End::kComplete) return;
    if (answers.what == "ended with exit code 127") fail_missing();  // of sh: not found
    const std::string what = answers.end == End::kLate ? "it did not answer in time" : answers.what;
    throw CommError(fmt::format("its program in Python: {}, see logs/{}.log", what, run_.row->name),
                    run_.run_dir, "");
  }

  [[noreturn]] void fail_missing() const {
    throw MissingPackage(fmt::format("{} has no package {}: pip install {}", python_,
                                     run_.row->package, run_.row->package));
  }

  void tell(const Json& answer) const {
    std::vector<std::string> words;
    for (const char* key : {"url", "sync", "show"})
      if (answer.contains(key)) words.push_back(answer[key].get<std::string>());
    log::info("{}: {}", run_.row->title,
              words.empty() ? "run " + answer.value("id", "") : join(words, ", "));
  }

  TrackedRun run_;
  std::string python_;
  Json record_ = Json::object();
  LineFile log_;
  std::optional<launch::LineProgram> program_;
  bool is_told_ = false;
};

}  // namespace

std::unique_ptr<Tracker> make_exporter(TrackedRun run) {
  return std::make_unique<Exporter>(std::move(run));
}

}  // namespace sftrun::track
