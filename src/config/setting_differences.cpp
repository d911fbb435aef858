#include "sftrun/config/setting_differences.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sftrun/config/run_config.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kGlobalBatch = "train.global_batch_size";

std::string shown_setting(const Json& settings, const std::string& key) {
  return settings.contains(key) ? settings[key].dump() : "nothing";
}

/// Parts of `tuning.train_parts` that are keys of their own, as one value again: as a list it is no map.
void join_parts(Json& settings) {
  constexpr std::string_view kParts = "tuning.train_parts";
  Json joined = Json::object();
  for (const auto& [key, value] : settings.items())
    if (key.starts_with(kParts) && key.size() > kParts.size())
      joined[key.substr(kParts.size() + 1)] = value;
  for (const auto& [part, value] : joined.items())
    settings.erase(fmt::format("{}.{}", kParts, part));
  if (!joined.empty()) settings[std::string(kParts)] = joined;
}

/// Patterns of which the first that matches applies: another order gives other ranks.
void add_order_differences(const Json& was, const Json& is, std::vector<std::string>& differences) {
  for (const std::string field : {"tuning.lora.rank_pattern", "tuning.lora.alpha_pattern"}) {
    const auto keys_of = [&](const Json& settings) {
      std::vector<std::string> keys;
      for (const auto& [key, value] : settings.items())
        if (key.starts_with(field + ".")) keys.push_back(key.substr(field.size() + 1));
      return keys;
    };
    const std::vector<std::string> before = keys_of(was), after = keys_of(is);
    if (before == after ||
        !std::is_permutation(before.begin(), before.end(), after.begin(), after.end()))
      continue;
    differences.push_back(fmt::format("the order of {} was {}, is now {}", field,
                                      excerpt(join(before, ", ")), excerpt(join(after, ", "))));
  }
}

}  // namespace

std::vector<std::string> key_differences(const Json& was, const Json& is) {
  std::set<std::string> keys;
  for (const auto& [key, value] : was.items()) keys.insert(key);
  for (const auto& [key, value] : is.items()) keys.insert(key);
  std::vector<std::string> differences;
  for (const std::string& key : keys) {
    if (was.value(key, Json()) == is.value(key, Json())) continue;
    differences.push_back(
        fmt::format("{} was {}, is now {}", key, shown_setting(was, key), shown_setting(is, key)));
  }
  return differences;
}

std::vector<std::string> setting_differences(Json was, Json is, bool may_change_length) {
  join_parts(was), join_parts(is);
  // A checkpoint written before a setting existed was trained with its default.
  const Json defaults = identity_settings({});
  for (const auto& [key, value] : is.items())
    if (!was.contains(key) && defaults.contains(key)) was[key] = defaults[key];
  if (may_change_length) {
    for (const std::string& key : length_keys()) was.erase(key), is.erase(key);
  }
  std::vector<std::string> differences = key_differences(was, is);
  add_order_differences(was, is, differences);
  return differences;
}

std::string restore_settings(const std::vector<std::string>& differences) {
  const bool has_batch =
      std::any_of(differences.begin(), differences.end(),
                  [](const std::string& one) { return one.starts_with(kGlobalBatch); });
  return has_batch ? "give the settings that differ their earlier values (train.global_batch_size "
                     "is train.batch_size x train.grad_accum x the number of processes)"
                   : "give the settings that differ their earlier values";
}

}  // namespace sftrun::config
