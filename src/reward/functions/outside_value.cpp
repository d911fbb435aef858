#include "outside_value.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "sftrun/core/outside_json.h"
#include "sftrun/core/strings.h"

namespace sftrun::reward {
namespace {

using Json = nlohmann::ordered_json;

/// Also .5 and 1. of bc and awk, which JSON does not have.
std::optional<double> plain_number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("+-.0123456789eE") != std::string::npos)
    return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return *end == '\0' ? std::optional(number) : std::nullopt;
}

std::string check_finite(double number, std::string_view shown) {
  return std::isfinite(number) ? ""
                               : fmt::format("`{}`, which is not a finite number", excerpt(shown));
}

}  // namespace

std::string outside_name(const char* kind, const config::RewardSpec& spec) {
  return spec.label == config::reward_info(spec.reward).name
             ? fmt::format("the judging {}", kind)
             : fmt::format("the {} of the reward {}", kind, spec.label);
}

std::string read_outside_value(const Json& json, Value& value) {
  value = std::nullopt;
  if (json.is_null()) return {};
  if (!json.is_number()) return fmt::format("{}, which is not a number", excerpt(json.dump()));
  value = json.get<double>();
  return check_finite(*value, json.dump());
}

std::string read_outside_line(std::string_view line, Value& value) {
  constexpr size_t kMaxDepth = 16;
  if (const auto number = plain_number(std::string(line))) {
    value = number;
    return check_finite(*number, line);
  }
  const std::string what =
      fmt::format("`{}`, which is neither a number nor {{\"reward\": number}}", excerpt(line));
  const Json json = parse_outside_json(line, kMaxDepth);
  if (json.is_null()) return read_outside_value(json, value);
  if (!json.is_object() || !json.contains("reward")) return what;
  return read_outside_value(json["reward"], value);
}

}  // namespace sftrun::reward
