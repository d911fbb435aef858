#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// The parts of a vision-language model.
namespace sftrun {

/// What `tuning.train_parts` selects. Each tensor of a model belongs to exactly one.
enum class ModelPart : uint8_t {
  kLanguage,   ///< the text model with its embedding and head
  kProjector,  ///< what maps the tower's output to the text model's width
  kVision,     ///< the tower
};

inline constexpr std::array kModelParts = {ModelPart::kLanguage, ModelPart::kProjector,
                                           ModelPart::kVision};

/// As a configuration names it.
constexpr std::string_view part_name(ModelPart part) {
  constexpr std::array<std::string_view, kModelParts.size()> kNames = {"language", "projector",
                                                                       "vision"};
  return kNames[static_cast<size_t>(part)];
}

/// A value for each part.
template <class T>
struct ByPart {
  std::array<T, kModelParts.size()> values = {};
  constexpr T& operator[](ModelPart part) { return values[static_cast<size_t>(part)]; }
  constexpr const T& operator[](ModelPart part) const { return values[static_cast<size_t>(part)]; }
  bool operator==(const ByPart&) const = default;
};

/// The parts that train; the others are frozen.
struct TrainedParts {
  bool language = true, projector = true, vision = true;

  static constexpr TrainedParts text() { return {true, false, false}; }
  static constexpr TrainedParts none() { return {false, false, false}; }
  constexpr bool has(ModelPart part) const {
    return part == ModelPart::kLanguage    ? language
           : part == ModelPart::kProjector ? projector
                                           : vision;
  }
  constexpr void add(ModelPart part) {
    (part == ModelPart::kLanguage    ? language
     : part == ModelPart::kProjector ? projector
                                     : vision) = true;
  }
  constexpr bool any() const { return language || projector || vision; }
  constexpr bool has_image_side() const { return projector || vision; }
  bool operator==(const TrainedParts&) const = default;
};

}  // namespace sftrun
