#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "cli.h"
#include "sftrun/core/dtype.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/cpu_topology.h"

/// What values of flags may be.
namespace sftrun::app {
namespace {

std::string spelled(const std::vector<std::string>& words) {
  return joined(words, " or ");
}

bool is_beyond_64_bits(const std::string& text) {
  int64_t ignored = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ignored);
  return error == std::errc::result_out_of_range && end == text.data() + text.size() &&
         !text.starts_with('-');
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Of numbers the one whose value is the nearest, else the word that is spelled alike.
std::string nearest_of(const std::string& text, const std::vector<std::string>& words) {
  const auto asked = whole_number(text);
  if (!asked || !std::all_of(words.begin(), words.end(), whole_number)) return nearest(text, words);
  const auto distance = [&](const std::string& word) {
    return std::abs(static_cast<double>(*whole_number(word)) - static_cast<double>(*asked));
  };
  return *std::min_element(words.begin(), words.end(),
                           [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
}

}  // namespace

CLI::Validator one_of(std::vector<std::string> words) {
  const std::string listed = join(words, "|");
  return CLI::Validator(
      [words = std::move(words)](std::string& text) -> std::string {
        if (std::find(words.begin(), words.end(), text) != words.end()) return {};
        const std::string near = nearest_of(text, words);
        return fmt::format("`{}` is not one of {}{}", excerpt(text), spelled(words),
                           near.empty() ? "" : fmt::format("; did you mean `{}`?", near));
      },
      listed);
}

void require_one_of(const std::string& flag, const std::string& text,
                    const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), text) != words.end()) return;
  const std::string near = nearest_of(text, words);
  throw ConfigError(fmt::format("`{}` is not one of {}", excerpt(text), spelled(words)),
                    flag + " on the command line",
                    near.empty() ? "write one of them" : fmt::format("did you mean `{}`?", near));
}

CLI::Validator compute_dtype() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (const auto dtype = float_dtype_named(text)) text = name_of(*dtype);
        return one_of({"auto", "fp32", "bf16", "fp16"})(text);
      },
      "auto|fp32|bf16|fp16");
}

CLI::Validator device_name() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        // By its letters it would be taken for `cpu`.
        if (ascii_lower(text) == "gpu")
          return fmt::format("`{}` is not one of auto, cuda or cpu; did you mean `cuda`?", text);
        return one_of({"auto", "cuda", "cpu"})(text);
      },
      "auto|cuda|cpu");
}

std::string other_base_error(const std::string& text) {
  constexpr std::string_view kPrefixes = "xXbBoO";
  const std::string_view trimmed = trim(text);
  const std::string_view digits =
      trimmed.substr(trimmed.starts_with('-') || trimmed.starts_with('+') ? 1 : 0);
  if (digits.size() < 2 || digits[0] != '0') return {};
  const bool has_prefix = kPrefixes.find(digits[1]) != std::string_view::npos;
  if (!has_prefix && (digits[1] < '0' || digits[1] > '9')) return {};
  return fmt::format("`{}` begins with {}: write a decimal number", excerpt(text),
                     digits.substr(0, has_prefix ? 2 : 1));
}

CLI::Validator at_least(int64_t min, int64_t max) {
  return CLI::Validator(
      [min, max](std::string& text) -> std::string {
        if (std::string error = other_base_error(text); !error.empty()) return error;
        int64_t number = 0;
        const bool is_beyond = is_beyond_64_bits(text);  // CLI11 takes the nearest number
        const bool is_number = CLI::detail::lexical_cast(text, number) && number >= min;
        if (is_number && !is_beyond && number <= max) return {};
        if (is_number || is_beyond)
          return fmt::format("`{}` is above the largest value, {}", excerpt(text), max);
        return fmt::format("`{}` is not a whole number of at least {}", excerpt(text), min);
      },
      "N");
}

CLI::Validator thread_count() {
  return at_least(1, launch::max_threads());
}

CLI::Validator in_range(double min, double max) {
  return CLI::Validator(
      [min, max](std::string& text) -> std::string {
        if (std::string error = other_base_error(text); !error.empty()) return error;
        double number = 0;
        if (CLI::detail::lexical_cast(text, number) && number >= min && number <= max) return {};
        return fmt::format("`{}` is not a number from {} to {}", excerpt(text), min, max);
      },
      "NUMBER");
}

}  // namespace sftrun::app
