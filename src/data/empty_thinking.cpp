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

/// What follows empty reasoning at the beginning of the text; nullopt: it begins otherwise.
std::optional<std::string_view> after_empty_thinking(std::string_view text) {
  for (const auto& [opener, closer] : kThinkingMarks) {
    std::string_view rest = without_leading_space(text);
    if (rest.starts_with(opener)) rest = without_leading_space(rest.substr(opener.size()));
    if (rest.starts_with(closer)) return without_leading_space(rest.substr(closer.size()));
  }
  return std::nullopt;
}

/// Where the text of the run's message begins in it, behind what the template writes first; its
/// end: nowhere.
uint32_t content_in(const templates::LabelledConversation::Run& run,
                    const templates::Rendered& rendered) {
  auto span = std::lower_bound(
      rendered.origins.begin(), rendered.origins.end(), run.span.begin,
      [](const templates::OriginSpan& one, uint32_t begin) { return one.end <= begin; });
  for (; span != rendered.origins.end() && span->begin < run.span.end; ++span) {
    const templates::Origin& origin = span->origin;
    if (origin.kind == templates::Origin::Kind::kMessage && origin.message == run.message &&
        origin.field == "content")
      return std::max(span->begin, run.span.begin);
  }
  return run.span.end;
}

}  // namespace

std::optional<tokenizer::ByteSpan> empty_thinking_at(std::string_view text,
                                                     tokenizer::ByteSpan answer) {
  std::string_view rest = text.substr(answer.begin, answer.end - answer.begin);
  bool is_found = false;
  while (const auto after = after_empty_thinking(rest)) {  // the template's, and the content's own
    rest = *after;
    is_found = true;
  }
  if (!is_found) return std::nullopt;
  return tokenizer::ByteSpan{answer.begin, answer.end - static_cast<uint32_t>(rest.size())};
}

std::vector<tokenizer::ByteSpan> find_empty_thinking(
    const templates::LabelledConversation& conversation) {
  const templates::Rendered& rendered = conversation.rendered;
  std::vector<tokenizer::ByteSpan> found;
  for (const templates::LabelledConversation::Run& run : conversation.runs) {
    auto span = empty_thinking_at(rendered.text, run.span);
    if (!span) span = empty_thinking_at(rendered.text, {content_in(run, rendered), run.span.end});
    if (span) found.push_back(*span);
  }
  return found;
}

void drop_spans(std::vector<templates::LabelledConversation::Run>& runs,
                const std::vector<tokenizer::ByteSpan>& spans) {
  using Run = templates::LabelledConversation::Run;
  for (const tokenizer::ByteSpan& span : spans) {
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
