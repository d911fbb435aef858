#include "sftrun/config/named_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sftrun/config/field_value.h"
#include "sftrun/core/user_path.h"

namespace sftrun::config {
namespace {

std::string spelled_value(const Value& value) {
  return value.kind == Value::Kind::kScalar ? value.text : to_json(value).dump();
}

/// The problem of a run's value that is not the file's; nullopt: they agree.
std::optional<Problem> contradiction(const Assignment& run, const Given& file) {
  if (are_same(run.key, run.value, file.assignment.value)) return std::nullopt;
  return Problem{
      fmt::format("`{}` is {}, but `{}` of {} makes it {}", run.key, spelled_value(run.value),
                  file.from, file.assignment.place.substr(0, file.assignment.place.find(':')),
                  spelled_value(file.assignment.value)),
      run.place + "; " + file.assignment.place,
      fmt::format("remove `{}` from the run, or set `{}` to the same value", run.key, file.from)};
}

}  // namespace

const Assignment* last_of(const AssignmentLayers& layers, std::string_view key) {
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

std::vector<Assignment> agreeing(std::vector<Assignment> run, const NamedFiles& named,
                                 const AssignmentLayers& above, Problems& problems) {
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
