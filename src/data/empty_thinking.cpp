#include "empty_thinking.h"

#include <algorithm>
#include <utility>

namespace sftrun::data {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view without_leading_space(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view{} : text.substr(first);
}

std::string_view without_trailing_space(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);  // npos + 1 is 0
}

}  // namespace

std::optional<text::ByteSpan> empty_thinking_at(std::string_view text, text::ByteSpan answer) {
  const std::string_view before = without_trailing_space(text.substr(0, answer.begin)),
                         own = text.substr(answer.begin, answer.end - answer.begin);
  for (const auto& [opener, closer] : kThinkingMarks) {
    std::string_view rest = without_leading_space(own);
    if (!before.ends_with(opener)) {
      if (!rest.starts_with(opener)) continue;
      rest = without_leading_space(rest.substr(opener.size()));
    }
    if (!rest.starts_with(closer)) continue;
    rest = without_leading_space(rest.substr(closer.size()));
    return text::ByteSpan{answer.begin, answer.end - static_cast<uint32_t>(rest.size())};
  }
  return std::nullopt;
}

std::vector<text::ByteSpan> find_empty_thinking(const text::LabelledConversation& conversation) {
  std::vector<text::ByteSpan> found;
  for (const text::LabelledConversation::Run& run : conversation.runs) {
    if (const auto span = empty_thinking_at(conversation.rendered.text, run.span))
      found.push_back(*span);
  }
  return found;
}

void drop_spans(std::vector<text::LabelledConversation::Run>& runs,
                const std::vector<text::ByteSpan>& spans) {
  using Run = text::LabelledConversation::Run;
  for (const text::ByteSpan& span : spans) {
    std::vector<Run> left;
    for (const Run& run : runs) {
      const Run before{{run.span.begin, std::min(run.span.end, span.begin)}, run.message},
          after{{std::max(run.span.begin, span.end), run.span.end}, run.message};
      for (const Run& part : {before, after})
        if (part.span.begin < part.span.end) left.push_back(part);
    }
    runs = std::move(left);
  }
}

}  // namespace sftrun::data
