#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/images/decode.h"

/// The files of tests/data/images, which scripts/fixtures/make_images.py writes.
namespace sftrun::images::fixtures {

inline std::filesystem::path image_path(const std::string& name) {
  return std::filesystem::path(SFTRUN_TEST_DATA) / "images" / name;
}

inline std::vector<std::byte> image_bytes(const std::string& name) {
  const MappedFile file(image_path(name));
  return {file.bytes().begin(), file.bytes().end()};
}

inline Image decoded(const std::string& name) {
  return decode(image_bytes(name));
}

inline const nlohmann::json& image_cases(const std::string& group) {
  static const auto kCases = nlohmann::json::parse(read_text_file(image_path("cases.json")));
  return kCases.at(group);
}

inline Image random_image(int64_t width, int64_t height, unsigned seed) {
  Image image(width, height);
  std::mt19937 random(seed);
  for (uint8_t& value : image.pixels) value = static_cast<uint8_t>(random());
  return image;
}

}  // namespace sftrun::images::fixtures
