#include "tracked_line.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace sftrun::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kEval = "eval_", kSeconds = "_seconds";
constexpr auto kParts = std::to_array<std::string_view>(
    {"data", "forward", "backward", "communication", "optimizer", "other"});

/// "time/forward" for "forward_seconds".
std::string name_in_step(std::string_view key) {
  for (const std::string_view part : kParts)
    if (key.starts_with(part) && key.substr(part.size()) == kSeconds)
      return fmt::format("time/{}", part);
  return fmt::format("train/{}", key);
}

std::string name_in_evaluation(std::string_view key) {
  if (key.starts_with(kEval)) key.remove_prefix(kEval.size());
  return fmt::format("eval/{}", key);
}

/// "loss" for "loss_per_rank".
std::string_view rank_key(std::string_view key) {
  constexpr std::string_view kPerRank = "_per_rank";
  if (key.ends_with(kPerRank)) key.remove_suffix(kPerRank.size());
  return key;
}

/// Numbers, lists of the ranks' numbers, and losses of validation sets.
void add_values(std::string_view key, const Json& value, TrackedLine& line) {
  const auto add = [&](std::string name, const Json& number) {
    if (number.is_number()) line.values.emplace_back(std::move(name), number.get<double>());
  };
  if (value.is_array())
    for (size_t rank = 0; rank < value.size(); ++rank)
      add(fmt::format("rank_{}/{}", rank, rank_key(key)), value[rank]);
  else if (value.is_object())
    for (const auto& [set, number] : value.items()) add("eval/loss/" + set, number);
  else
    add(line.is_evaluation ? name_in_evaluation(key) : name_in_step(key), value);
}

}  // namespace

std::optional<TrackedLine> tracked_line(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  TrackedLine line{.step = step->get<int64_t>(),
                   .is_evaluation = observe::is_evaluation_line(json)};
  const char* last = line.is_evaluation ? "eval_seconds" : "step_seconds";
  for (const auto& [key, value] : json.items())
    if (key != "step" && key != last) add_values(key, value, line);
  if (const auto found = json.find(last); found != json.end() && found->is_number())
    line.seconds = found->get<double>();
  line.values.emplace_back(line.is_evaluation ? kLastOfEvaluation : kLastOfStep, line.seconds);
  return line;
}

}  // namespace sftrun::track
