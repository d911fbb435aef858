#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

/// JSON whose numbers stay what the text says. nlohmann's numbers have 64 bits, so
/// 12345678901234567890123 would become 1.2345678901234568e+22, and 4.50 would become 4.5. Here such
/// a number keeps its text: it is "kept", and `is_number()` of nlohmann is false for it. A kept number
/// is an integer beyond 64 bits, or a fraction that `float_repr` would write differently. -0 is kept as
/// a fraction, because it loses its sign in Python.
namespace sftrun {

using ExactJson = nlohmann::ordered_json;

/// Python's repr(): the fewest digits that are read as the same number (0.1, 1e+16, 1e-05), and
/// inf, -inf, nan.
std::string float_repr(double value);

/// @throws ExactJson::parse_error, and ExactJson::out_of_range for a number beyond a double's range
ExactJson parse_exact_json(std::string_view text);

/// @param text a number in JSON's grammar
ExactJson exact_number(std::string_view text);

bool is_kept_integer(const ExactJson& value);
bool is_kept_fraction(const ExactJson& value);
/// As the text says: 4.50; of numbers that are not kept, as JSON and Python write them.
std::string number_text(const ExactJson& number);
/// The nearest double, of kept numbers too.
double number_value(const ExactJson& number);
/// Kept fractions, also inside of `value`, become doubles, and -0 becomes 0, as in Python.
void round_fractions(ExactJson& value);

/// Bytes that are no text, as tables hold files. JSON has none: `to_json_text` writes their number.
ExactJson json_of_bytes(std::string_view bytes);
bool is_bytes(const ExactJson& value);
/// @pre is_bytes(value)
std::string_view bytes_of(const ExactJson& value);

/// nlohmann's dump() and type_name(), for values that may have kept numbers. NaN and infinity, which
/// JSON does not have, become null.
std::string to_json_text(const ExactJson& value);
const char* json_type(const ExactJson& value);

}  // namespace sftrun
