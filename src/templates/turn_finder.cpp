#include "turn_finder.h"

#include <algorithm>

#include "sftrun/core/error.h"

namespace sftrun::templates {
namespace {

using Run = LabelledConversation::Run;

/// Bytes that come from a message's own text (its role and name belong to the header).
struct ContentSpan {
  size_t begin, end;
  int32_t message;
  bool is_content;  ///< from its field `content`
};

std::vector<ContentSpan> content_spans(const Rendered& rendered) {
  std::vector<ContentSpan> spans;
  for (const OriginSpan& span : rendered.origins) {
    const Origin& origin = span.origin;
    if (origin.kind != Origin::Kind::kMessage || origin.field == "role" || origin.field == "name")
      continue;
    spans.push_back({span.begin, span.end, origin.message, origin.field == "content"});
  }
  return spans;
}

size_t common_bytes(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(end - a.begin());
}

std::string_view trimmed_right(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  return last == std::string_view::npos ? std::string_view{} : text.substr(0, last + 1);
}

/// A rendered conversation with the positions of its content.
struct Text {
  Rendered rendered;
  std::vector<ContentSpan> spans;

  explicit Text(Rendered r) : rendered(std::move(r)), spans(content_spans(rendered)) {}
  std::string_view view() const { return rendered.text; }
  /// End of the last byte from a message before `message`, within the text up to `limit`.
  size_t end_of_earlier(int32_t message, size_t limit) const {
    size_t end = 0;
    for (const ContentSpan& span : spans) {
      if (span.message < message && span.end <= limit) end = std::max(end, span.end);
    }
    return end;
  }
  std::optional<size_t> first_of(int32_t message) const {
    for (const ContentSpan& span : spans) {
      if (span.message == message) return span.begin;
    }
    return std::nullopt;
  }
  /// Position of the first byte from a message after `message`, at or after `from`.
  size_t begin_of_later(int32_t message, size_t from) const {
    for (const ContentSpan& span : spans) {
      if (span.message > message && span.begin >= from) return span.begin;
    }
    return view().size();
  }
};

/// Tokens that begin thinking, for families that write them into the generation prompt.
size_t thinking_opener(std::string_view prompt) {
  constexpr std::string_view kOpeners[] = {
      "<think", "<|channel>", "<|channel|>", "<|START_THINKING|>", "[THINK]", "<seed:think"};
  size_t first = prompt.size();
  for (const std::string_view opener : kOpeners) first = std::min(first, prompt.find(opener));
  return first;
}

/// The text that a template writes between the last byte of a conversation and the answer.
struct Prompt {
  std::string tail;   ///< after the conversation's last byte
  size_t shared = 0;  ///< bytes of it that are also written without a generation prompt

  std::string_view own_part() const { return std::string_view(tail).substr(shared); }
};

/// Finds one assistant turn in the full text.
class TurnFinder {
 public:
  TurnFinder(const ChatTemplate& chat_template, const Json& messages, const RenderOptions& options,
             const Text& full, const FindSpecials& find_specials, int32_t message)
      : template_(chat_template),
        messages_(messages),
        options_(options),
        full_(full),
        find_specials_(find_specials),
        message_(message) {
    before_ = render(message, false);
    const bool is_last =
        static_cast<size_t>(message) + 1 == messages.size() && !options.add_generation_prompt;
    after_ = is_last ? full : render(message + 1, false);
    prompt_ = prompt_after(message);
    const int32_t asked = through_a_user();
    if (asked != message) header_ = prompt_after(asked);
  }

  /// Empty if the template omits the message.
  std::vector<Run> find_all() const {
    const std::optional<Run> first = find();
    if (!first) return {};
    std::vector<Run> runs = {*first};
    for (const ContentSpan& span : content_after(first->span.end)) {
      runs.push_back(
          {{static_cast<uint32_t>(span.begin), static_cast<uint32_t>(span.end)}, message_});
    }
    return runs;
  }

  std::optional<Run> find() const {
    if (!full_.first_of(message_)) {
      if (before_ && after_ && after_->view() == before_->view()) return std::nullopt;
      if (const auto probed = find_by_probe()) return probed;
    }
    const auto start = start_in(full_);
    if (!start) return std::nullopt;
    const size_t end = end_from(*start);
    if (end <= *start) return std::nullopt;
    return Run{{static_cast<uint32_t>(*start), static_cast<uint32_t>(end)}, message_};
  }

 private:
  /// Renders the first messages; nullopt if the template rejects them without the others.
  std::optional<Text> render(int32_t count, bool add_generation_prompt) const {
    RenderOptions options = options_;
    options.add_generation_prompt = add_generation_prompt;
    auto rendered =
        template_.render_prefix_if_accepted(messages_, static_cast<size_t>(count), options);
    if (!rendered) return std::nullopt;
    return Text(*std::move(rendered));
  }

  std::optional<Prompt> prompt_after(int32_t count) const {
    const auto with = render(count, true);
    const auto without = count == message_ ? before_ : render(count, false);
    if (!with || !without) return std::nullopt;
    const auto tail = [count](const Text& text) {
      return text.view().substr(text.end_of_earlier(count, text.view().size()));
    };
    return Prompt{std::string(tail(*with)), common_bytes(tail(*without), tail(*with))};
  }

  /// The number of messages up to and including the last user message before the turn (else the
  /// first one after it).
  int32_t through_a_user() const {
    const auto asks = [this](int32_t index) {
      return messages_[static_cast<size_t>(index)].value("role", "") == "user";
    };
    for (int32_t index = message_ - 1; index >= 0; --index) {
      if (asks(index)) return index + 1;
    }
    const auto num_messages = static_cast<int32_t>(messages_.size());
    for (int32_t index = message_; index < num_messages; ++index) {
      if (asks(index)) return index + 1;
    }
    return num_messages;
  }

  /// Finds an answer without content by rendering it with one byte, if that changes nothing else.
  std::optional<Run> find_by_probe() const {
    Json messages = messages_;
    messages[static_cast<size_t>(message_)]["content"] = "x";
    auto rendered = template_.render_if_accepted(messages, options_);
    if (!rendered) return std::nullopt;
    const Text probed(*std::move(rendered));
    const auto at = probed.first_of(message_);
    if (!at) return std::nullopt;
    std::string without(probed.view());
    without.erase(*at, 1);
    if (without != full_.view()) return std::nullopt;
    auto run = TurnFinder(template_, messages, options_, probed, find_specials_, message_).find();
    if (run) --run->span.end;
    return run;
  }

  /// The pieces of the message's content that come after bytes of a later message.
  std::vector<ContentSpan> content_after(size_t position) const {
    std::vector<ContentSpan> pieces;
    bool passed_another = false;
    for (const ContentSpan& span : full_.spans) {
      if (span.begin < position) continue;
      if (span.message != message_) {
        passed_another = passed_another || span.message > message_;
        continue;
      }
      if (!passed_another || !span.is_content) continue;
      if (!pieces.empty() && pieces.back().end == span.begin)
        pieces.back().end = span.end;
      else
        pieces.push_back(span);
    }
    return pieces;
  }

  // ---- Begin of the turn

  std::optional<size_t> start_in(const Text& text) const {
    const auto own = text.first_of(message_);
    const size_t limit = own ? *own : text.begin_of_later(message_, 0);
    const size_t anchor = text.end_of_earlier(message_, limit);
    const std::string_view region = text.view().substr(anchor, limit - anchor);
    size_t matched = 0;
    if (prompt_) {
      matched = common_bytes(text.view().substr(anchor), prompt_->tail);
      if (matched == prompt_->tail.size()) return anchor + matched + header_at(region, matched);
      const size_t opener = prompt_->shared + thinking_opener(prompt_->own_part());
      const bool whole = matched >= region.size() &&
                         opener >= region.size();  // not cut inside the prompt's thinking
      if (own && whole && region.size() > prompt_->shared) return own;
    }
    if (const auto after_whole = after_part(region, /*thinking=*/true))
      return anchor + *after_whole;
    if (const auto cut = last_cut(matched)) return anchor + *cut;
    if (const auto after_header = after_part(region, /*thinking=*/false))
      return anchor + *after_header;
    if (const auto begin = begin_by_probe(text, anchor, limit)) return begin;
    return own;
  }

  /// The position where the text differs from a plain answer: a turn that continues without a
  /// header opens its tool call there.
  std::optional<size_t> begin_by_probe(const Text& text, size_t anchor, size_t limit) const {
    Json messages = messages_;
    Json& message = messages[static_cast<size_t>(message_)];
    message = {{"role", message.at("role")}, {"content", "\x01"}};
    const auto probed =
        template_.render_prefix_if_accepted(messages, static_cast<size_t>(message_) + 1, options_);
    if (!probed) return std::nullopt;
    const size_t shared = common_bytes(text.view(), probed->text);
    if (shared < anchor || shared > limit || probed->text[shared] != '\x01') return std::nullopt;
    return shared;
  }

  /// Templates with an empty generation prompt (for example after a tool's answer) may still write
  /// the header.
  size_t header_at(std::string_view region, size_t at) const {
    const bool prompts_for_nothing =
        prompt_->own_part().empty() && header_ && !header_->own_part().empty();
    if (!prompts_for_nothing || at > region.size()) return 0;
    const std::string_view header = header_->own_part();
    return region.substr(at).starts_with(header) ? header.size() : 0;
  }

  /// The position after the generation prompt in the region: the whole prompt, or the part before
  /// its thinking.
  std::optional<size_t> after_part(std::string_view region, bool thinking) const {
    for (const std::optional<Prompt>* prompt : {&prompt_, &header_}) {
      if (!*prompt) continue;
      std::string_view part = (*prompt)->own_part();
      if (!thinking) part = part.substr(0, thinking_opener(part));
      if (part.empty()) continue;
      if (const size_t found = region.rfind(part); found != std::string_view::npos)
        return found + part.size();
    }
    return std::nullopt;
  }

  /// If the text has only the first `matched` bytes of the prompt: the position after their last
  /// special token or line. A prompt's thinking counts only as a whole.
  std::optional<size_t> last_cut(size_t matched) const {
    if (!prompt_) return std::nullopt;
    const std::string_view tail = prompt_->tail;
    const size_t opener = prompt_->shared + thinking_opener(prompt_->own_part());
    if (opener <= matched && opener > prompt_->shared) return opener;
    std::optional<size_t> last;
    const auto consider = [&](size_t place) {
      if (place <= matched && place > prompt_->shared) last = std::max(last.value_or(0), place);
    };
    for (const tokenizer::ByteSpan& special : find_specials_(tail)) consider(special.end);
    for (size_t at = tail.find('\n'); at != std::string_view::npos; at = tail.find('\n', at + 1))
      consider(at + 1);
    return last;
  }

  // ---- End of the turn

  /// The text after the turn's last byte at the end of a conversation, without trailing white
  /// space.
  std::string_view closing() const {
    if (!after_) return {};
    size_t last = 0;
    bool own = false;
    for (const ContentSpan& span : after_->spans) {
      if (span.message == message_) last = span.end, own = true;
    }
    if (!own) last = start_in(*after_).value_or(after_->view().size());
    return trimmed_right(after_->view().substr(last));
  }

  /// Ends of the turn's content, last first; `start` if it has none.
  std::vector<size_t> content_ends(size_t start, size_t bound) const {
    std::vector<size_t> ends;
    for (const ContentSpan& span : full_.spans) {
      if (span.message == message_ && span.end > start && span.end <= bound)
        ends.push_back(span.end);
    }
    if (ends.empty()) ends.push_back(start);
    std::reverse(ends.begin(), ends.end());
    return ends;
  }

  size_t end_from(size_t start) const {
    const size_t bound = full_.begin_of_later(message_, start);
    if (!content_after(start).empty()) {
      if (const auto end = end_of_first_part(start, bound)) return *end;
    }
    const std::vector<size_t> ends = content_ends(start, bound);
    const std::string_view closing_text = closing();
    const std::string_view text = full_.view();
    if (!closing_text.empty()) {
      for (const size_t end : ends) {
        if (text.substr(end).starts_with(closing_text))
          return end_of_closing(end, end + closing_text.size(), bound);
      }
    }
    const bool closed_by_next = after_ && closing_text.empty();
    return first_special(ends.front(), bound, closed_by_next).value_or(ends.front());
  }

  /// For a turn with content after a later message: the last special token in the text that follows
  /// its other bytes both here and at the end of a conversation.
  std::optional<size_t> end_of_first_part(size_t start, size_t bound) const {
    if (!after_) return std::nullopt;
    size_t last = 0;
    for (const ContentSpan& span : after_->spans) {
      if (span.message == message_ && !span.is_content) last = span.end;
    }
    const std::string_view alone = after_->view().substr(last);
    for (const size_t end : content_ends(start, bound)) {
      const std::string_view here = full_.view().substr(end, bound - end);
      const size_t shared = common_bytes(here, alone);
      const std::vector<tokenizer::ByteSpan> specials = find_specials_(here.substr(0, shared));
      if (!specials.empty()) return end + specials.back().end;
    }
    return std::nullopt;
  }

  /// End of the closing's last special token. If it has none, the next message's header may close
  /// the turn.
  size_t end_of_closing(size_t begin, size_t end, size_t bound) const {
    const std::vector<tokenizer::ByteSpan> specials =
        find_specials_(full_.view().substr(begin, end - begin));
    if (!specials.empty()) return begin + specials.back().end;
    return first_special(end, bound, true).value_or(end);
  }

  /// The end of the first special token in [begin, bound).
  /// @param directly only white space may precede it
  std::optional<size_t> first_special(size_t begin, size_t bound, bool directly) const {
    if (begin >= bound) return std::nullopt;
    const std::string_view literal = full_.view().substr(begin, bound - begin);
    const std::vector<tokenizer::ByteSpan> specials = find_specials_(literal);
    if (specials.empty()) return std::nullopt;
    if (directly && !trimmed_right(literal.substr(0, specials.front().begin)).empty())
      return std::nullopt;
    return begin + specials.front().end;
  }

  const ChatTemplate& template_;
  const Json& messages_;
  const RenderOptions& options_;
  const Text& full_;
  const FindSpecials& find_specials_;
  int32_t message_;
  std::optional<Text> before_, after_;     ///< the messages before this one, and up to it
  std::optional<Prompt> prompt_, header_;  ///< before this turn, and right after a user's message
};

}  // namespace

std::vector<Run> find_turn(const ChatTemplate& chat_template, const Json& messages,
                           const RenderOptions& options, const Rendered& full,
                           const FindSpecials& find_specials, int32_t message) {
  const Text text(full);
  return TurnFinder(chat_template, messages, options, text, find_specials, message).find_all();
}

}  // namespace sftrun::templates
