#include "sftrun/core/short_words.h"

#include <algorithm>

#include "sftrun/core/strings.h"

namespace sftrun {

std::string with_short_words(std::string_view message) {
  constexpr size_t kMaxWord = 1000;
  constexpr std::string_view kBlanks = " \t\n";
  if (message.size() <= kMaxWord) return std::string(message);
  std::string result;
  for (size_t begin = 0; begin < message.size();) {
    const size_t end = std::min(message.find_first_of(kBlanks, begin), message.size() - 1) + 1;
    const std::string_view word = message.substr(begin, end - begin);
    result += word.size() > kMaxWord ? excerpt(word) : std::string(word);
    begin = end;
  }
  return result;
}

}  // namespace sftrun
