#include "empty_thinking.h"

#include <array>
#include <string_view>
#include <utility>

namespace sftrun::data {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view without_leading_space(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view{} : text.substr(first);
}

/// Size of the empty reasoning at the beginning of `text`, with the white space around it; 0: none.
size_t empty_thinking_bytes(std::string_view text) {
  using Pair = std::pair<std::string_view, std::string_view>;
  static constexpr std::array kMarks = {
      Pair{"<think>", "</think>"}, Pair{"<|START_THINKING|>", "<|END_THINKING|>"},
      Pair{"[THINK]", "[/THINK]"}, Pair{"<seed:think>", "</seed:think>"}};
  const std::string_view answer = without_leading_space(text);
  for (const auto& [opener, closer] : kMarks) {
    if (!answer.starts_with(opener)) continue;
    const std::string_view inside = without_leading_space(answer.substr(opener.size()));
    if (!inside.starts_with(closer)) continue;
    return text.size() - without_leading_space(inside.substr(closer.size())).size();
  }
  return 0;
}

}  // namespace

int64_t find_empty_thinking(text::LabelledConversation& conversation, bool drop) {
  int64_t found = 0;
  for (text::LabelledConversation::Run& run : conversation.runs) {
    const std::string_view text = std::string_view(conversation.rendered.text)
                                      .substr(run.span.begin, run.span.end - run.span.begin);
    const size_t bytes = empty_thinking_bytes(text);
    if (bytes == 0) continue;
    ++found;
    if (drop) run.span.begin += static_cast<uint32_t>(bytes);
  }
  return found;
}

}  // namespace sftrun::data
