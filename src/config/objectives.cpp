#include "sftrun/config/objectives.h"

#include <algorithm>

#include "row_settings.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {

namespace {

const ObjectiveInfo* find_by(std::string_view ObjectiveInfo::*member, std::string_view value) {
  const auto* found = std::find_if(
      kObjectives.begin(), kObjectives.end(),
      [&](const ObjectiveInfo& info) { return !value.empty() && info.*member == value; });
  return found == kObjectives.end() ? nullptr : found;
}

std::vector<std::string> names_for(ExampleForm form) {
  return objective_names([&](const ObjectiveInfo& info) { return info.form == form; });
}

}  // namespace

const ObjectiveInfo* find_objective(std::string_view name) {
  return find_by(&ObjectiveInfo::name, name);
}

const ObjectiveInfo* find_objective_of_torchtune(std::string_view loss) {
  return find_by(&ObjectiveInfo::torchtune_loss, loss);
}

std::string all_objectives(std::string_view last) {
  return joined(objective_names([](const ObjectiveInfo&) { return true; }), last);
}

std::string objectives_for(ExampleForm form) {
  return joined(names_for(form), " or ");
}

std::string first_objective_for(ExampleForm form) {
  return names_for(form).front();
}

std::string name_objectives(std::string text) {
  constexpr std::string_view kAll = "{objectives}", kAny = "{objective}";
  if (const size_t at = text.find(kAll); at != std::string::npos)
    text.replace(at, kAll.size(), all_objectives(" and "));
  if (const size_t at = text.find(kAny); at != std::string::npos)
    text.replace(at, kAny.size(), all_objectives(" or "));
  return text;
}

std::string objective_descriptions() {
  std::string text;
  for (const ObjectiveInfo& info : kObjectives)
    text += std::string(text.empty() ? "" : " ") + std::string(info.name) + ": " +
            std::string(info.description) + ".";
  return text;
}

std::string readers_of_setting(std::string_view key) {
  return join(objective_names([&](const ObjectiveInfo& info) { return info.reads(key); }), ", ");
}

std::vector<std::string_view> objective_settings() {
  return settings_of(kObjectives);
}

}  // namespace sftrun::config
