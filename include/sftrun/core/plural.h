#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace sftrun {

/// "step" for one, "steps" for any other number; "processes", "micro-batches", "matrices".
std::string plural(std::string_view word, std::integral auto count) {
  if (count == 1) return std::string(word);
  if (word.ends_with("ix")) return std::string(word.substr(0, word.size() - 1)) + "ces";
  const bool is_sibilant = word.ends_with("ss") || word.ends_with("ch");
  return std::string(word) + (is_sibilant ? "es" : "s");
}

/// "1 step", "20 steps"
std::string counted(std::integral auto count, std::string_view word) {
  return std::to_string(count) + " " + plural(word, count);
}

/// "the first record", "the first 20 records"
std::string the_first(std::integral auto count, std::string_view word) {
  return "the first " + (count == 1 ? std::string(word) : counted(count, word));
}

}  // namespace sftrun
