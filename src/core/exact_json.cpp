#include "sftrun/core/exact_json.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "sftrun/core/json_memory.h"

namespace sftrun {
namespace {

// Kept numbers are values of nlohmann's type `binary`, which no text holds, with these subtypes.
constexpr uint64_t kInteger = 0x696e74, kFraction = 0x66726163;
constexpr uint64_t kBytes = 0x6279746573;      // the same for bytes of a table
constexpr std::string_view kMinusZero = "-0";  // an integer: 0 in Python

ExactJson kept(std::string_view text, uint64_t subtype) {
  return ExactJson::binary({text.begin(), text.end()}, subtype);
}

bool has_subtype(const ExactJson& value, uint64_t subtype) {
  return value.is_binary() && value.get_binary().has_subtype() &&
         value.get_binary().subtype() == subtype;
}

template <class Integer>
std::optional<Integer> whole_number(std::string_view text) {
  Integer value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Builds the value. Of equal keys the last one counts, at the place of the first, as in Python.
class ExactReader final : public nlohmann::json_sax<ExactJson> {
 public:
  ExactReader() = default;
  ~ExactReader() override { empty_json(root_); }  // what was read, if memory ran out
  ExactReader(const ExactReader&) = delete;
  ExactReader& operator=(const ExactReader&) = delete;
  ExactJson take() { return std::move(root_); }

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override {  // only of numbers with a minus
    return scalar(value == 0 ? exact_number(kMinusZero) : ExactJson(value));
  }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
  bool number_float(number_float_t, const string_t& text) override {
    return scalar(exact_number(text));
  }
  bool string(string_t& value) override { return scalar(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool start_object(size_t) override { return open(ExactJson::object()); }
  bool start_array(size_t) override { return open(ExactJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    if (const auto* syntax = dynamic_cast<const ExactJson::parse_error*>(&error)) throw *syntax;
    if (const auto* range = dynamic_cast<const ExactJson::out_of_range*>(&error)) throw *range;
    return false;
  }

 private:
  ExactJson& put(ExactJson value) {
    if (open_.empty()) return root_ = std::move(value);
    ExactJson& parent = *open_.back();
    if (parent.is_array()) return parent.emplace_back(std::move(value));
    return parent[key_] = std::move(value);
  }
  bool scalar(ExactJson value) {
    put(std::move(value));
    return true;
  }
  bool open(ExactJson value) {
    open_.push_back(&put(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  ExactJson root_;
  std::vector<ExactJson*> open_;  // only the innermost one grows
  std::string key_;
};

void write_json(const ExactJson& value, std::string& out) {
  if (value.is_object()) {
    out += '{';
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (it != value.begin()) out += ',';
      out += ExactJson(it.key()).dump() + ':';
      write_json(it.value(), out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ',';
      write_json(value[i], out);
    }
    out += ']';
  } else if (is_bytes(value)) {
    out += fmt::format("\"<{} bytes>\"", value.get_binary().size());
  } else if (value.is_binary() || value.is_number_float()) {
    const bool is_finite = value.is_binary() || std::isfinite(value.get<double>());
    out += is_finite ? number_text(value) : "null";
  } else {
    out += value.dump();
  }
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                    std::chars_format::scientific);
  const std::string_view shortest(buffer.data(), static_cast<size_t>(result.ptr - buffer.data()));
  const size_t e = shortest.find('e');
  const std::string_view mantissa = shortest.substr(0, e);
  const int exponent = std::stoi(std::string(shortest.substr(e + 1)));
  const std::string sign = mantissa[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : mantissa) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  constexpr int kFirstLongExponent = 16;  // Python switches to exponents below 1e-4 and from 1e16
  if (exponent < -4 || exponent >= kFirstLongExponent) {
    const std::string fraction = digits.size() > 1 ? "." + digits.substr(1) : "";
    return fmt::format("{}{}{}e{}{:02d}", sign, digits[0], fraction, exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

ExactJson parse_exact_json(std::string_view text) {
  ExactReader reader;
  ExactJson::sax_parse(text, &reader);
  return reader.take();
}

ExactJson exact_number(std::string_view text) {
  if (text == kMinusZero) return kept(text, kFraction);
  if (text.find_first_of(".eE") == std::string_view::npos) {
    if (const auto integer = whole_number<int64_t>(text)) return *integer;
    if (const auto integer = whole_number<uint64_t>(text)) return *integer;
    return kept(text, kInteger);
  }
  const double value = std::strtod(std::string(text).c_str(), nullptr);
  return float_repr(value) == text ? ExactJson(value) : kept(text, kFraction);
}

bool is_kept_integer(const ExactJson& value) {
  return has_subtype(value, kInteger);
}

bool is_kept_fraction(const ExactJson& value) {
  return has_subtype(value, kFraction);
}

ExactJson json_of_bytes(std::string_view bytes) {
  return ExactJson::binary({bytes.begin(), bytes.end()}, kBytes);
}

bool is_bytes(const ExactJson& value) {
  return has_subtype(value, kBytes);
}

std::string_view bytes_of(const ExactJson& value) {
  const auto& bytes = value.get_binary();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string number_text(const ExactJson& number) {
  if (number.is_number_float()) return float_repr(number.get<double>());
  if (!number.is_binary()) return number.dump();
  const auto& text = number.get_binary();
  return {text.begin(), text.end()};
}

double number_value(const ExactJson& number) {
  return number.is_binary() ? std::strtod(number_text(number).c_str(), nullptr)
                            : number.get<double>();
}

void round_fractions(ExactJson& value) {
  if (value.is_structured()) {
    for (ExactJson& item : value) round_fractions(item);
  } else if (is_kept_fraction(value)) {
    value = number_text(value) == kMinusZero ? ExactJson(0) : ExactJson(number_value(value));
  }
}

std::string to_json_text(const ExactJson& value) {
  std::string text;
  write_json(value, text);
  return text;
}

const char* json_type(const ExactJson& value) {
  if (is_bytes(value)) return "bytes";
  return value.is_binary() ? "number" : value.type_name();
}

}  // namespace sftrun
