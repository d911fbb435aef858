#include "sftrun/config/train_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "parse_field.h"

namespace sftrun::config {
namespace {

using Json = nlohmann::ordered_json;

std::optional<ModelPart> part_named(std::string_view name) {
  for (const ModelPart part : kModelParts)
    if (name == part_name(part)) return part;
  return std::nullopt;
}

std::string part_names() {
  std::vector<std::string> names;
  for (const ModelPart part : kModelParts) names.emplace_back(part_name(part));
  return joined(names, " and ");
}

/// What models and other trainers call the parts.
constexpr auto kOtherNames = std::to_array<std::pair<std::string_view, ModelPart>>({
    {"llm", ModelPart::kLanguage},
    {"lm", ModelPart::kLanguage},
    {"text", ModelPart::kLanguage},
    {"text_model", ModelPart::kLanguage},
    {"language_model", ModelPart::kLanguage},
    {"mm_language_model", ModelPart::kLanguage},
    {"decoder", ModelPart::kLanguage},
    {"backbone", ModelPart::kLanguage},
    {"merger", ModelPart::kProjector},
    {"connector", ModelPart::kProjector},
    {"aligner", ModelPart::kProjector},
    {"mlp1", ModelPart::kProjector},
    {"mm_projector", ModelPart::kProjector},
    {"mm_mlp_adapter", ModelPart::kProjector},
    {"multi_modal_projector", ModelPart::kProjector},
    {"multimodal_projector", ModelPart::kProjector},
    {"embed_vision", ModelPart::kProjector},
    {"visual", ModelPart::kVision},
    {"vit", ModelPart::kVision},
    {"tower", ModelPart::kVision},
    {"image", ModelPart::kVision},
    {"images", ModelPart::kVision},
    {"encoder", ModelPart::kVision},
    {"vision_tower", ModelPart::kVision},
    {"mm_vision_tower", ModelPart::kVision},
    {"vision_model", ModelPart::kVision},
    {"vision_encoder", ModelPart::kVision},
    {"image_encoder", ModelPart::kVision},
});

bool means_all(const std::string& name) {
  return name == "all" || name == "full" || name == "everything" || name == "model" || name == "*";
}

/// @param all what a word for all parts is told
Complaint no_part(const std::string& name, const std::string& all) {
  std::vector<std::string> names;
  for (const ModelPart part : kModelParts) names.emplace_back(part_name(part));
  const std::string word = ascii_lower(name.substr(name.rfind('.') + 1));
  const auto* const other = std::find_if(kOtherNames.begin(), kOtherNames.end(),
                                         [&](const auto& known) { return known.first == word; });
  const std::string near = nearest(name, names);
  return {fmt::format("has the part `{}`", excerpt(name)),
          means_all(word) ? all
          : other != kOtherNames.end()
              ? fmt::format("write `{}`, which `{}` is here; the parts of a model are {}",
                            part_name(other->second), word, part_names())
          : near.empty() ? fmt::format("the parts of a model are {}", part_names())
                         : fmt::format("did you mean `{}`?", near),
          /*show_takes=*/false};
}

Complaint no_mode(const std::string& part, const Value& mode) {
  return {fmt::format("is {} for {}", describe(mode), part),
          "write lora or full; a part that is not named is frozen", /*show_takes=*/false};
}

/// qlora is LoRA, too: the base's format is that of the run.
std::optional<PartTraining> training_named(const Value& mode) {
  if (mode.kind != Value::Kind::kScalar) return std::nullopt;
  const std::string word = ascii_lower(mode.text);
  if (word == "lora" || word == "qlora") return PartTraining::kLora;
  if (word == "full") return PartTraining::kFull;
  return std::nullopt;
}

std::optional<Complaint> add_part(const Value& name, PartTraining training, TrainParts& parts) {
  if (name.kind != Value::Kind::kScalar)
    return Complaint{fmt::format("has an item that is {}", describe(name)), {}};
  const auto part = part_named(name.text);
  if (!part) return no_part(name.text, "name all parts: [language, projector, vision]");
  if (parts.trains(*part))
    return Complaint{fmt::format("names {} twice", name.text), "name each part once",
                     /*show_takes=*/false};
  parts.training[*part] = training;
  return std::nullopt;
}

}  // namespace

TrainedParts TrainParts::trained() const {
  TrainedParts parts = TrainedParts::none();
  for (const ModelPart part : kModelParts)
    if (trains(part)) parts.add(part);
  return parts;
}

bool TrainParts::any(PartTraining wanted) const {
  return std::any_of(kModelParts.begin(), kModelParts.end(),
                     [&](ModelPart part) { return training[part] == wanted; });
}

std::string TrainParts::list() const {
  std::vector<std::string> names;
  for (const ModelPart part : kModelParts)
    if (trains(part)) names.emplace_back(part_name(part));
  return fmt::format("[{}]", join(names, ", "));
}

TrainedParts TuningConfig::full_parts() const {
  TrainedParts parts = TrainedParts::none();
  if (!trains_adapter()) return parts;
  for (const ModelPart part : kModelParts)
    if (train_parts.training[part] == PartTraining::kFull) parts.add(part);
  return parts;
}

std::optional<Complaint> parse_field(const Value& value, const Limits&, TrainParts& member) {
  TrainParts parts = TrainParts::none();
  if (value.kind == Value::Kind::kScalar) {
    if (auto complaint = add_part(value, PartTraining::kByMode, parts)) return complaint;
  } else if (value.kind == Value::Kind::kList || value.kind == Value::Kind::kMap) {
    for (size_t i = 0; i < value.items.size(); ++i) {
      const bool is_list = value.kind == Value::Kind::kList;
      const Value name = is_list ? value.items[i] : Value::scalar(value.keys[i].text);
      const auto training = is_list ? PartTraining::kByMode : training_named(value.items[i]);
      if (auto complaint = add_part(name, training.value_or(PartTraining::kByMode), parts))
        return complaint;
      if (!training) return no_mode(name.text, value.items[i]);
    }
  } else {
    return wrong_type(value);
  }
  if (parts == TrainParts::none())
    return Complaint{"names no part", "name what trains, for example [language]",
                     /*show_takes=*/false};
  member = parts;
  return std::nullopt;
}

Json field_to_json(const TrainParts& member) {
  const bool is_list = !member.any(PartTraining::kLora) && !member.any(PartTraining::kFull);
  Json json = is_list ? Json::array() : Json::object();
  for (const ModelPart part : kModelParts) {
    if (!member.trains(part)) continue;
    const std::string name(part_name(part));
    if (is_list)
      json.push_back(name);
    else
      json[name] = member.training[part] == PartTraining::kLora ? "lora" : "full";
  }
  return json;
}

std::optional<Complaint> parse_field(const Value& value, const Limits& limits, PartRates& member) {
  if (value.kind != Value::Kind::kMap) return wrong_type(value);
  PartRates rates;
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string& name = value.keys[i].text;
    const auto part = part_named(name);
    if (!part)
      return no_part(name, "train.learning_rate is the rate of all parts without one of their own");
    double rate = 0;
    if (value.items[i].kind == Value::Kind::kNull) continue;
    if (parse_field(value.items[i], limits, rate))
      return Complaint{fmt::format("is {} for {}", describe(value.items[i]), name),
                       fmt::format("write a number from {} to {}", limits.min, limits.max),
                       /*show_takes=*/false};
    rates[*part] = rate;
  }
  member = rates;
  return std::nullopt;
}

Json field_to_json(const PartRates& member) {
  Json json = Json::object();
  for (const ModelPart part : kModelParts)
    if (member[part]) json[std::string(part_name(part))] = *member[part];
  return json;
}

}  // namespace sftrun::config
