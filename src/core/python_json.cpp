#include "sftrun/core/python_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace sftrun {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct StandIn {
  std::string_view number, text;
  double value;
};
constexpr std::array<StandIn, 3> kStandIns = {
    {{"NaN", "\x7fsftrun:NaN", std::numeric_limits<double>::quiet_NaN()},
     {"Infinity", "\x7fsftrun:Infinity", kInfinity},
     {"-Infinity", "\x7fsftrun:-Infinity", -kInfinity}}};

const StandIn& stand_in_for(double number) {
  return kStandIns[std::isnan(number) ? 0 : number > 0 ? 1 : 2];
}

/// The end of the string that begins at `at`.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
  return std::min(at + 1, text.size());
}

bool is_number_char(char c) {
  return (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E';
}

/// The infinity that Python makes of a number of many digits or a large exponent; 0: another number.
double infinity_of(std::string_view digits) {
  constexpr size_t kAlwaysFinite = 16;
  const bool has_exponent = digits.find_first_of("eE") != std::string_view::npos;
  if (!has_exponent && digits.size() < kAlwaysFinite) return 0;
  double number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc::result_out_of_range || end != digits.data() + digits.size()) return 0;
  // Too large or too small, which from_chars does not tell.
  const size_t exponent = digits.find_first_of("eE");
  const bool is_small = exponent != std::string_view::npos && digits[exponent + 1] == '-';
  return is_small ? 0 : digits.front() == '-' ? -kInfinity : kInfinity;
}

/// Whether a colon follows: the parser refuses a key without quotes.
bool is_key(std::string_view text, size_t end) {
  const size_t next = text.find_first_not_of(" \t\r\n", end);
  return next != std::string_view::npos && text[next] == ':';
}

template <class Json>
void mark_numbers(Json& value) {
  if (value.is_number_float() && !std::isfinite(value.template get<double>()))
    value = std::string(stand_in_for(value.template get<double>()).text);
  if (value.is_structured())
    for (auto& item : value) mark_numbers(item);
}

}  // namespace

PythonJson::PythonJson(std::string_view text) : original_(text) {
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      at = end_of_string(text, at);
      continue;
    }
    const auto word = std::find_if(kStandIns.begin(), kStandIns.end(), [&](const StandIn& one) {
      return text.substr(at).starts_with(one.number);
    });
    size_t end = at + 1;
    if (word != kStandIns.end()) {
      end = at + word->number.size();
      if (!is_key(text, end)) replace(at, end, word->text);
    } else if (is_number_char(text[at])) {
      while (end < text.size() && is_number_char(text[end])) ++end;
      if (const double infinity = infinity_of(text.substr(at, end - at)); infinity != 0)
        replace(at, end, stand_in_for(infinity).text);
    }
    at = end;
  }
  if (!changed_.empty()) changed_ += text.substr(copied_);
}

void PythonJson::replace(size_t begin, size_t end, std::string_view stand_in) {
  changed_ += original_.substr(copied_, begin - copied_);
  changed_ += '"';
  changed_ += stand_in;
  changed_ += '"';
  copied_ = end;
  shifts_.push_back({.begin = changed_.size(), .added = changed_.size() - end});
}

size_t PythonJson::byte_in_file(size_t byte) const {
  const auto after =
      std::upper_bound(shifts_.begin(), shifts_.end(), byte,
                       [](size_t value, const Shift& shift) { return value <= shift.begin; });
  return after == shifts_.begin() ? byte : byte - std::prev(after)->added;
}

const double* PythonJson::number_for(const std::string& text) {
  const auto found = std::find_if(kStandIns.begin(), kStandIns.end(),
                                  [&](const StandIn& one) { return one.text == text; });
  return found == kStandIns.end() ? nullptr : &found->value;
}

std::string dump_python_json(const nlohmann::ordered_json& value, int indent) {
  nlohmann::ordered_json marked = value;
  mark_numbers(marked);
  std::string text = marked.dump(indent);
  for (const StandIn& one : kStandIns) {
    const std::string quoted = '"' + std::string(one.text) + '"';
    for (size_t at = text.find(quoted); at != std::string::npos; at = text.find(quoted, at))
      text.replace(at, quoted.size(), one.number);
  }
  return text;
}

}  // namespace sftrun
