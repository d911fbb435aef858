#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "sftrun/core/error.h"

/// libFuzzer targets (make fuzz). A target hands any bytes to a reader; an Error is an answer,
/// anything else that escapes is a finding.
namespace sftrun::fuzz {

template <typename Function>
void expecting_errors(Function&& function) {
  try {
    function();
  } catch (const Error&) {
    // What a reader answers to input that is not sound.
  }
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}

}  // namespace sftrun::fuzz
