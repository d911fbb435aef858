#pragma once

#include <ATen/core/Tensor.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace sftrun::test {

inline const at::Device kCard(at::kCUDA, 0);

/// A packed build finds them elsewhere than where it was made.
inline std::filesystem::path data(const std::string& name) {
  const char* there = std::getenv("SFTRUN_TEST_DATA");
  return std::filesystem::path(there != nullptr ? there : SFTRUN_TEST_DATA) / name;
}

}  // namespace sftrun::test
