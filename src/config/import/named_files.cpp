#include "import/named_files.h"

#include "choices.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/short_quotes.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"

namespace sftrun::config {
namespace {

using importing::Given;
using importing::Reading;

constexpr const char* kAccelerateKey = "parallel.accelerate";
constexpr const char* kDeepSpeedKey = "parallel.deepspeed";

/// The assignment of the highest layer; nullptr: the key is not set, or set to nothing.
const Assignment* last_of(const std::vector<const std::vector<Assignment>*>& layers,
                          std::string_view key) {
  const Assignment* last = nullptr;
  for (const std::vector<Assignment>* layer : layers) {
    for (const Assignment& assignment : *layer) {
      if (assignment.key != key) continue;
      const bool is_named = assignment.value.kind == Value::Kind::kScalar &&
                            !assignment.value.text.empty() && !is_none_word(assignment.value.text);
      last = is_named ? &assignment : nullptr;
    }
  }
  return last;
}

/// The run's tuning.mode.
std::string mode_of(const std::vector<const std::vector<Assignment>*>& layers) {
  const Assignment* const mode = last_of(layers, "tuning.mode");
  return mode == nullptr ? std::string(word_of(TuningConfig().mode)) : mode->value.text;
}

/// One line with the keys that have no meaning here.
std::string line_of_keys(const std::filesystem::path& file, const std::vector<ImportNote>& notes) {
  std::vector<std::string> keys;
  keys.reserve(notes.size());
  for (const ImportNote& note : notes) keys.push_back(note.key);
  return fmt::format("{}: without a meaning here: {} (`sftrun config import {}` says why)",
                     file.string(), join(keys, ", "), shell_word(file.string()));
}

void take(NamedFiles& named, const std::filesystem::path& file, const Reading& reading) {
  if (!reading.no_meaning.empty()) named.notes.push_back(line_of_keys(file, reading.no_meaning));
  for (const ImportNote& note : reading.not_carried)
    named.warnings.push_back(
        fmt::format("{} of {}: {} ({})", note.key, file.string(), note.why, note.place));
}

std::string spelled_value(const Value& value) {
  return value.kind == Value::Kind::kScalar ? value.text : to_json(value).dump();
}

/// The problem of a run's value that is not the file's; nullopt: they agree.
std::optional<Problem> contradiction(const Assignment& run, const Given& file) {
  if (importing::are_same(run.key, run.value, file.assignment.value)) return std::nullopt;
  return Problem{
      fmt::format("`{}` is {}, but `{}` of {} makes it {}", run.key, spelled_value(run.value),
                  file.from, file.assignment.place.substr(0, file.assignment.place.find(':')),
                  spelled_value(file.assignment.value)),
      run.place + "; " + file.assignment.place,
      fmt::format("remove `{}` from the run, or set `{}` to the same value", run.key, file.from)};
}

}  // namespace

std::vector<Assignment> NamedFiles::assignments() const {
  std::vector<Assignment> list;
  list.reserve(given.size());
  for (const Given& one : given) list.push_back(one.assignment);
  return list;
}

bool NamedFiles::is_default(const std::string& key, const std::string& place) const {
  return std::any_of(given.begin(), given.end(), [&](const Given& one) {
    return one.assignment.key == key && one.assignment.place == place && !one.is_firm;
  });
}

NamedFiles read_named_files(const std::vector<const std::vector<Assignment>*>& layers,
                            const std::function<std::filesystem::path(const std::string&)>& located,
                            Problems& problems) {
  NamedFiles named;
  std::optional<Reading> all;
  for (const auto& [key, tool] : {std::pair(kAccelerateKey, ForeignTool::kAccelerate),
                                  std::pair(kDeepSpeedKey, ForeignTool::kDeepSpeed)}) {
    const Assignment* const assignment = last_of(layers, key);
    if (assignment == nullptr) continue;
    const std::filesystem::path file = located(assignment->value.text);
    if (!leads_to_file(file)) {
      throw DataError(fmt::format("{}: no such file: {}", key, shown_path(assignment->value.text)),
                      assignment->value_place,
                      "paths are relative to the current directory, or to the directory of the "
                      "YAML file");
    }
    Reading reading = importing::read_foreign_file(file, tool);
    reading.settle_weights_on_host(mode_of(layers));
    take(named, file, reading);
    if (all)
      all->include(std::move(reading));
    else
      all.emplace(std::move(reading));
  }
  if (!all) return named;
  problems.insert(problems.end(), all->problems.begin(), all->problems.end());
  named.given = std::move(all->given);
  named.launch = std::move(all->launch);
  return named;
}

std::vector<Assignment> agreeing(std::vector<Assignment> run, const NamedFiles& named,
                                 const std::vector<const std::vector<Assignment>*>& above,
                                 Problems& problems) {
  std::erase_if(run, [&](const Assignment& assignment) {
    const auto file = std::find_if(named.given.begin(), named.given.end(), [&](const Given& one) {
      return one.assignment.key == assignment.key;
    });
    if (file == named.given.end()) return false;
    if (assignment.value.kind == Value::Kind::kNull || assignment.value.text == "auto") return true;
    if (!file->is_firm || last_of(above, assignment.key) != nullptr) return false;
    if (auto problem = contradiction(assignment, *file)) problems.push_back(std::move(*problem));
    return false;
  });
  return run;
}

}  // namespace sftrun::config
