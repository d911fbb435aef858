#include "sftrun/config/preference_losses.h"

#include <fmt/format.h>

#include <algorithm>

#include "loss_names.h"
#include "parse_field.h"
#include "row_settings.h"
#include "sftrun/core/strings.h"

/// `train.loss_type`.
namespace sftrun::config {
namespace {

std::optional<Complaint> add_share(const std::string& name, double weight, LossMixture& losses) {
  const PreferenceLossInfo* info = find_preference_loss(ascii_lower(name));
  if (const ObjectiveInfo* objective = find_objective(ascii_lower(name));
      info == nullptr && objective != nullptr && !objective->reads_answers())
    return Complaint{
        fmt::format("has the loss {}", excerpt(name)),
        fmt::format("it is an objective of its own: set train.objective: {}", objective->name),
        /*show_takes=*/false};
  if (info == nullptr)
    return Complaint{fmt::format("has the loss {}", excerpt(name)),
                     fix_of_unknown_loss(nullptr),  // until the objective is known
                     /*show_takes=*/false};
  const bool is_twice = std::any_of(losses.shares.begin(), losses.shares.end(),
                                    [&](const LossShare& one) { return one.loss == info->loss; });
  if (is_twice)
    return Complaint{fmt::format("has {} twice", info->name), "give it one weight",
                     /*show_takes=*/false};
  losses.shares.push_back({info->loss, weight});
  return std::nullopt;
}

/// The names of a list have the weight 1, as in TRL.
std::optional<Complaint> read_share(const Value& value, size_t i, LossMixture& losses) {
  const Value& item = value.items[i];
  if (value.kind == Value::Kind::kList) {
    if (item.kind != Value::Kind::kScalar)
      return Complaint{fmt::format("has an item that is {}", describe(item)), {}};
    return add_share(item.text, 1, losses);
  }
  double weight = 0;
  constexpr double kMaxWeight = 1e6;
  const Limits limits{.min = 0, .max = kMaxWeight, .above_min = true};
  if (parse_field(item, limits, weight))
    return Complaint{
        fmt::format("has the weight {} for {}", describe(item), excerpt(value.keys[i].text)),
        fmt::format("write a number above 0 and at most {:g}, or leave the loss out", kMaxWeight),
        /*show_takes=*/false};
  return add_share(value.keys[i].text, weight, losses);
}

}  // namespace

std::string fix_of_unknown_loss(const ObjectiveInfo* objective) {
  const bool has_several = objective != nullptr && !objective->losses.empty();
  std::vector<std::string> names;
  for (const PreferenceLossInfo& info : kPreferenceLosses)
    if (!has_several || objective->takes_loss(info.loss)) names.emplace_back(info.name);
  if (!has_several) return "the losses are " + joined(names, " and ");
  return names.size() == 1
             ? fmt::format("the loss of train.objective {} is {}", objective->name, names.front())
             : fmt::format("the losses of train.objective {} are {}", objective->name,
                           joined(names, " and "));
}

const PreferenceLossInfo* find_preference_loss(std::string_view name) {
  const auto* found =
      std::find_if(kPreferenceLosses.begin(), kPreferenceLosses.end(),
                   [&](const PreferenceLossInfo& info) { return info.name == name; });
  return found == kPreferenceLosses.end() ? nullptr : found;
}

std::string words_of(const LossMixture& losses) {
  std::string words;
  for (const LossShare& share : losses.shares) {
    if (!words.empty()) words += " + ";
    if (share.weight != 1) words += fmt::format("{:g} ", share.weight);
    words += loss_info(share.loss).name;
  }
  return words;
}

std::string loss_formulas() {
  std::string text;
  for (const PreferenceLossInfo& info : kPreferenceLosses)
    text += fmt::format("{}: `{}`. ", info.name, info.formula);
  return text +
         "c and r are beta times the log-ratios of the chosen and the rejected answer, h is the "
         "difference of the two log-ratios, e is label_smoothing.";
}

std::vector<std::string_view> loss_settings() {
  return settings_of(kPreferenceLosses);
}

std::string losses_that_read(std::string_view key) {
  std::vector<std::string> names;
  for (const PreferenceLossInfo& info : kPreferenceLosses)
    if (info.reads(key)) names.emplace_back(info.name);
  return joined(names, " and ");
}

LossMixture TrainConfig::losses() const {
  const ObjectiveInfo& info = objective_info();
  if (!loss_type.shares.empty() || info.losses.empty()) return loss_type;
  return {{{info.losses.front(), 1}}};
}

std::optional<Complaint> parse_field(const Value& value, const Limits&, LossMixture& member) {
  LossMixture losses;
  if (value.kind == Value::Kind::kScalar) {
    if (auto complaint = add_share(value.text, 1, losses)) return complaint;
  } else if (value.kind == Value::Kind::kMap || value.kind == Value::Kind::kList) {
    for (size_t i = 0; i < value.items.size(); ++i)
      if (auto complaint = read_share(value, i, losses)) return complaint;
    if (losses.shares.empty()) return wrong_type(value);
  } else {
    return wrong_type(value);
  }
  member = std::move(losses);
  return std::nullopt;
}

nlohmann::ordered_json field_to_json(const LossMixture& member) {
  const std::vector<LossShare>& shares = member.shares;
  if (shares.empty()) return nullptr;
  if (shares.size() == 1 && shares.front().weight == 1) return loss_info(shares.front().loss).name;
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const LossShare& share : shares)
    json[std::string(loss_info(share.loss).name)] = share.weight;
  return json;
}

}  // namespace sftrun::config
