#include "preference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

/// Whether TRL 1.x smooths the labels of this loss.
bool smooths_in_trl(const std::string& loss) {
  return loss == "robust" || loss == "exo_pair";
}

bool smooths_here(const std::string& name) {
  const config::PreferenceLossInfo* loss = config::find_preference_loss(name);
  return loss != nullptr && loss->reads("train.label_smoothing");
}

/// An error: the objective has no such loss.   @param name "": none is named
void refuse_loss(Conversion& conversion, const SourceKey& key, const ObjectiveInfo& objective,
                 const std::string& name) {
  std::vector<std::string> known;
  for (const config::PreferenceLoss loss : objective.losses)
    known.emplace_back(config::loss_info(loss).name);
  conversion.refuse(key,
                    name.empty() ? fmt::format("`{}` names no loss", key.name)
                                 : fmt::format("`{}` has the loss {}, which is not supported",
                                               key.name, excerpt(name)),
                    fmt::format("the losses of `train.objective: {}` are {}: use the tool itself "
                                "for others",
                                objective.name, joined(known, " and ")));
}

}  // namespace

std::string other_objectives(std::string_view tool) {
  return fmt::format("`train.objective` takes {}: use {} itself for other objectives",
                     config::all_objectives(" and "), tool);
}

void refuse_objective(Conversion& conversion, const SourceKey& key) {
  const ObjectiveInfo* ours = config::find_objective(ascii_lower(key.value.text));
  if (ours != nullptr && !ours->is_cross_entropy)
    return conversion.refuse(
        key,
        fmt::format("`{}` is {}, which is not supported by `config import`", key.name,
                    describe(key.value)),
        fmt::format("remove `{}`, import the rest, and set `train.objective: {}` in the result "
                    "(docs/objectives.md)",
                    key.name, ours->name));
  conversion.refuse(
      key, fmt::format("`{}` is {}, which is not supported", key.name, describe(key.value)),
      other_objectives("the tool"));
}

std::vector<std::string> loss_names(const Value& value) {
  std::vector<std::string> names;
  for (const Value& item : value.items) names.push_back(ascii_lower(item.text));
  if (value.kind == Value::Kind::kScalar) names.push_back(ascii_lower(value.text));
  return names;
}

void add_loss(WeightedLosses& losses, std::string_view name, double weight) {
  const auto same = std::find_if(losses.begin(), losses.end(),
                                 [&](const WeightedLoss& loss) { return loss.name == name; });
  if (same == losses.end())
    losses.push_back({std::string(name), weight});
  else
    same->weight += weight;
}

std::optional<WeightedLosses> weighted_losses(Conversion& conversion,
                                              const std::vector<std::string>& names,
                                              const std::optional<SourceKey>& weights,
                                              std::string_view losses_key) {
  WeightedLosses losses;
  if (!weights || is_off(weights->value)) {
    for (const std::string& name : names) add_loss(losses, name, 1);
    return losses;
  }
  if (weights->value.kind != Value::Kind::kList || weights->value.items.size() != names.size()) {
    conversion.refuse(
        *weights,
        fmt::format("`{}` is {}, and `{}` has {}", weights->name,
                    weights->value.kind == Value::Kind::kList
                        ? fmt::format("a list of {}", weights->value.items.size())
                        : describe(weights->value),
                    losses_key,
                    names.size() == 1 ? "one loss" : fmt::format("{} losses", names.size())),
        "write a list with one weight for each loss");
    return std::nullopt;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const Value& item = weights->value.items[i];
    const auto weight =
        item.kind == Value::Kind::kScalar ? parse_double(item.text) : std::optional<double>();
    if (!weight || *weight < 0) {
      conversion.refuse(*weights,
                        fmt::format("`{}` has the weight {}", weights->name, describe(item)),
                        "write a number of at least 0");
      return std::nullopt;
    }
    if (*weight > 0) add_loss(losses, names[i], *weight);
  }
  return losses;
}

void set_losses(Conversion& conversion, const SourceKey& key, const ObjectiveInfo& objective,
                const WeightedLosses& losses) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const auto& [name, weight] : losses) {
    const config::PreferenceLossInfo* loss = config::find_preference_loss(name);
    if (loss == nullptr || !objective.takes_loss(loss->loss))
      return refuse_loss(conversion, key, objective, name);
    map[name] = weight;
  }
  if (losses.empty()) return refuse_loss(conversion, key, objective, "");
  const bool is_one = losses.size() == 1 && losses.front().weight == 1;
  conversion.set(key, "train.loss_type",
                 is_one ? Value::scalar(losses.front().name) : value_from_json(map));
}

void set_smoothing_of_dpo(Conversion& conversion, const SourceKey& key,
                          const std::vector<std::string>& losses) {
  if (is_off(key.value) || parse_double(key.value.text) == 0.0) return;
  std::vector<std::string> unread;
  for (const std::string& name : losses)
    if (smooths_here(name) && !smooths_in_trl(name)) unread.push_back(name);
  const bool is_read = std::any_of(losses.begin(), losses.end(), smooths_in_trl);
  if (is_read) conversion.set(key, "train.label_smoothing", key.value);
  const std::string names = joined(unread, " and ");
  if (is_read && !unread.empty())
    conversion.note_lost(
        key, fmt::format("TRL 1.16 ignores it in {}; here the labels of {} are smoothed, too",
                         names, names));
  else if (!unread.empty())
    conversion.note_lost(
        key,
        fmt::format("TRL 1.16 ignores it with the loss {}. `train.label_smoothing: {}` smooths "
                    "the labels (cDPO), as TRL 0.24 did with sigmoid",
                    names, key.value.text));
  else if (!is_read)
    conversion.note_no_meaning(
        key, fmt::format("the loss {} has no label smoothing", joined(losses, " and ")));
}

void set_precomputed_reference(Conversion& conversion, const SourceKey& key,
                               const ObjectiveInfo* objective) {
  if (objective == nullptr || !objective->needs_reference)
    return conversion.note_no_meaning(key, "only used with a reference model");
  if (objective->needs_mismatched)
    return conversion.note_no_meaning(
        key, fmt::format("with {} answers of other examples are scored, too, in each step",
                         objective->name));
  if (!is_off(key.value)) conversion.set(key, "train.reference_logps", "precomputed");
}

}  // namespace sftrun::foreign
