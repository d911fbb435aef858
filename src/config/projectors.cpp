#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "parse_field.h"
#include "sftrun/core/projector_sizes.h"

/// `model.projectors`.
namespace sftrun::config {
namespace {

/// It is part of tensors' names.
bool is_projector_name(const std::string& name) {
  constexpr size_t kMaxName = 64;
  return !name.empty() && name.size() <= kMaxName &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
}

Complaint about(const std::string& projector, const std::string& what, std::string fix) {
  return {fmt::format("{} for {}", what, excerpt(projector)), std::move(fix), /*show_takes=*/false};
}

std::optional<Complaint> read_number(const Value& key, const Value& value,
                                     FeatureProjector& projector) {
  const auto known = std::find_if(kProjectorSizes.begin(), kProjectorSizes.end(),
                                  [&](const ProjectorSize& of) { return key.text == of.key; });
  if (known == kProjectorSizes.end())
    return about(projector.name, fmt::format("has the key `{}`", excerpt(key.text)),
                 "the keys are input_width, hidden and tokens");
  if (value.kind == Value::Kind::kNull) return std::nullopt;
  const Limits limits{.min = 1, .max = static_cast<double>(kMaxProjectorSize)};
  if (!parse_field(value, limits, projector.*(known->member))) return std::nullopt;
  return about(projector.name, fmt::format("has the {} {}", known->key, describe(value)),
               fmt::format("write a whole number from 1 to {}", kMaxProjectorSize));
}

}  // namespace

std::optional<Complaint> parse_field(const Value& value, const Limits&, Projectors& member) {
  if (value.kind != Value::Kind::kMap) return wrong_type(value);
  Projectors projectors;
  for (size_t i = 0; i < value.items.size(); ++i) {
    const Value& sizes = value.items[i];
    FeatureProjector projector{.name = value.keys[i].text};
    if (!is_projector_name(projector.name))
      return Complaint{fmt::format("has the name `{}`", excerpt(projector.name)),
                       "names are of letters, digits, _ and -", /*show_takes=*/false};
    if (sizes.kind != Value::Kind::kMap)
      return about(projector.name, fmt::format("is {}", describe(sizes)),
                   "write its sizes: {input_width: 1024}");
    for (size_t j = 0; j < sizes.items.size(); ++j) {
      const Value key = Value::scalar(sizes.keys[j].text);
      if (auto complaint = read_number(key, sizes.items[j], projector)) return complaint;
    }
    if (projector.input_width == 0)
      return about(projector.name, "has no input_width",
                   "write the width of the features: {input_width: 1024}");
    projectors.push_back(std::move(projector));
  }
  member = std::move(projectors);
  return std::nullopt;
}

nlohmann::ordered_json field_to_json(const Projectors& member) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const FeatureProjector& projector : member) {
    nlohmann::ordered_json& sizes = json[projector.name] = nlohmann::ordered_json::object();
    for (const ProjectorSize& size : kProjectorSizes)
      if (projector.*(size.member) != 0) sizes[size.key] = projector.*(size.member);
  }
  return json;
}

}  // namespace sftrun::config
