#include "validate/checks.h"

#include <fmt/format.h>

#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::config::relations {

void Checks::require(std::span<const Rule> rules) {
  for (const Rule& rule : rules)
    if (rule.is_broken(run()))
      error(rule.message.of(run()), {rule.keys[0], rule.keys[1]}, rule.fix.of(run()));
}

void Checks::error(const std::string& message, std::initializer_list<const char*> keys,
                   const std::string& fix) {
  std::vector<std::string> places;
  for (const char* key : keys)
    if (key != nullptr && is_set(key)) places.push_back(loaded_.place_of(key));
  problems_.push_back({message, join(places, "; "), fix});
}

void Checks::error(const std::vector<ObjectiveRefusal>& refusals) {
  for (const ObjectiveRefusal& refusal : refusals)
    error(refusal.message, {refusal.key, "train.objective"}, refusal.fix);
}

void Checks::warn(const std::string& message, const std::string& key) {
  const std::string place = loaded_.place_of(key);
  warnings_.push_back(place.empty() ? message : fmt::format("{} ({})", message, place));
}

void check_time(Checks& checks, const char* key, const std::string& text, bool may_be_zero,
                const std::string& fix) {
  const auto seconds = parse_duration_s(text);
  if (seconds && (may_be_zero || *seconds > 0)) return;
  checks.error(fmt::format("`{}` is `{}`; it takes a time such as 90s, 10m or 1h30m, at most 3650d",
                           key, excerpt(text)),
               {key}, fix);
}

std::string shown(const nlohmann::ordered_json& value) {
  return excerpt(value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace sftrun::config::relations
