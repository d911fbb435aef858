#pragma once

#include <optional>
#include <string_view>

namespace sftrun::reward {

/// Where the number of a text stands.
enum class NumberPlace { kAuto, kBoxed, kHashes, kLast };

/// The number of a text. In its place it is the last one: 1,234 and 1234.50, .5, -3, −3, $5, 5%, 1e-3,
/// \frac{1}{2} and 1/2, but not 1/0. A minus between two numbers or words is no sign: 5-3 has the numbers 5 and 3.
///
///   boxed    the last \boxed{…} or \fbox{…} with balanced braces (MATH)
///   hashes   behind the last #### (GSM8K)
///   last     the whole text
///   auto     the first of these that has a number
std::optional<double> find_number(std::string_view text, NumberPlace place);

}  // namespace sftrun::reward
