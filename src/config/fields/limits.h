#pragma once

#include <string>
#include <utility>

#include "sftrun/config/limits.h"

/// What values of fields may be.
namespace sftrun::config {

inline Limits any() {
  return {};
}
/// A path, in which `~` is a home directory. "none", "null" and the like mean `none`.
inline Limits a_path(std::string none = {}) {
  return {.is_path = true, .none = std::move(none)};
}
inline Limits at_least(double min) {
  return {.min = min};
}
inline Limits between(double min, double max) {
  return {.min = min, .max = max};
}
inline Limits above_up_to(double min, double max) {
  return {.min = min, .max = max, .above_min = true};
}
inline Limits from_until(double min, double max) {
  return {.min = min, .max = max, .below_max = true};
}

/// Numbers of steps, tokens and records: far from overflow in products, and in what clocks and files hold.
inline constexpr double kMaxCount = 1e12;
/// Fp32 holds what is not above it.
inline constexpr double kMaxFp32 = 3e38;
inline constexpr double kMaxFactor =
    1e6;  ///< of a loss or an update: its squares stay finite in fp32
inline constexpr double kMaxWaitS = 1e6;  ///< for a program, as `timeout` of a reward
inline constexpr double kMaxNegatives = 65536;
inline constexpr double kMaxTokens = 1 << 24;  ///< of a sequence
inline constexpr double kMaxImagePixels = 1 << 28, kMaxImageSide = 1 << 16;
inline constexpr double kMaxDevices = 1 << 16;          ///< of a run
inline constexpr double kMaxSeed = 9007199254740992.0;  ///< 2^53: what JSON's readers keep

/// Keeps products of batch sizes and devices far from overflow.
inline constexpr double kMaxBatch = 1 << 20;
inline constexpr double kMaxEpochs = 1e6;  // their records stay countable

}  // namespace sftrun::config
