#pragma once

#include <string>
#include <string_view>

namespace sftrun {

/// A message in which what no blank divides has at most 1000 bytes, more than people's paths: the rest is a number or a word of a file,
/// of which its `excerpt` is kept. For messages whose quotes are not shortened where they are made.
std::string with_short_words(std::string_view message);

}  // namespace sftrun
