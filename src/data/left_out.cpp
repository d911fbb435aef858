#include "left_out.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "content_parts.h"
#include "empty_thinking.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

using templates::LabelledConversation;
using templates::Origin;

bool is_given(const Json& message, const char* key) {
  const auto value = message.find(key);
  if (value == message.end() || value->is_null() || value->empty()) return false;
  return !value->is_string() || !trim(value->get_ref<const std::string&>()).empty();
}

bool shows(const templates::Rendered& rendered, int32_t message,
           const std::set<std::string>& fields) {
  return std::any_of(rendered.origins.begin(), rendered.origins.end(),
                     [&](const templates::OriginSpan& span) {
                       return span.origin.kind == Origin::Kind::kMessage &&
                              span.origin.message == message && fields.contains(span.origin.field);
                     });
}

constexpr std::array kReasoningKeys = {"reasoning_content", "thinking", "reasoning"};

/// A piece of a message's text that is not blank, without the white space around it.
struct Piece {
  size_t text = 0;  ///< index into texts_of(message)
  size_t begin = 0, size = 0;
  bool is_reasoning = false;
};

struct Mark {
  size_t begin, size;  ///< begin: npos for none
  bool closes;
};

/// Finds the marks of reasoning in order. Each place is searched once for each mark.
class Marks {
 public:
  explicit Marks(std::string_view text) : text_(text) {
    for (const auto& [opener, closer] : kThinkingMarks) {
      next_.push_back({text.find(opener), opener.size(), false});
      next_.push_back({text.find(closer), closer.size(), true});
    }
  }
  /// The first at or after `from`, which never decreases.
  Mark from(size_t from) {
    for (size_t i = 0; i < next_.size(); ++i) {
      const ThinkingMarks& marks = kThinkingMarks[i / 2];
      if (next_[i].begin < from)
        next_[i].begin = text_.find(next_[i].closes ? marks.closer : marks.opener, from);
    }
    return *std::min_element(next_.begin(), next_.end(), [](const Mark& one, const Mark& other) {
      return one.begin < other.begin;
    });
  }

 private:
  std::string_view text_;
  std::vector<Mark> next_;
};

/// The texts of an answer, divided at the marks of reasoning; other messages' texts as they are.
/// Reasoning is what is between two marks, and what is before the first one if that closes.
std::vector<Piece> pieces_of(const Json& message) {
  std::vector<Piece> pieces;
  const bool is_answer = message["role"] == "assistant";
  bool is_first = true, is_open = false;
  const std::vector<const std::string*> texts = texts_of(message);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = *texts[i];
    Marks marks(is_answer ? std::string_view(text) : std::string_view());
    for (size_t at = 0; at <= text.size();) {
      const Mark mark = marks.from(at);
      const size_t end = std::min(mark.begin, text.size());
      const std::string_view inside = trim(std::string_view(text).substr(at, end - at));
      const bool is_reasoning = mark.closes && (is_open || is_first);
      if (!inside.empty())
        pieces.push_back(
            {i, static_cast<size_t>(inside.data() - text.data()), inside.size(), is_reasoning});
      if (mark.begin == std::string::npos) break;
      is_first = false;
      is_open = !mark.closes;
      at = end + mark.size;
    }
  }
  return pieces;
}

/// What each message's own text became, in order.
std::map<int32_t, std::string> shown_texts(const templates::Rendered& rendered) {
  std::map<int32_t, std::string> shown;
  for (const templates::OriginSpan& span : rendered.origins) {
    if (span.origin.kind == Origin::Kind::kMessage && span.origin.field == "content")
      shown[span.origin.message].append(rendered.text, span.begin, span.end - span.begin);
  }
  return shown;
}

/// Tools reach the text through `tojson` or field by field; their names stand there either way.
bool shows_a_tool(const std::string& text, const Json& tools) {
  return std::any_of(tools.begin(), tools.end(), [&](const Json& tool) {
    const Json& function = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string())
      return true;  // of an unknown kind
    return text.find(function["name"].get<std::string>()) != std::string::npos;
  });
}

bool makes_calls(const Json& message) {
  return is_given(message, "tool_calls") || is_given(message, "function_call");
}

}  // namespace

namespace {

/// Finds what the template leaves out of messages' own texts.
class TextSearch {
 public:
  TextSearch(const templates::Rendered& rendered, const Json& messages,
             const templates::ChatTemplate& chat_template, const templates::RenderOptions& render)
      : rendered_(rendered),
        messages_(messages),
        chat_template_(chat_template),
        render_(render),
        shown_(shown_texts(rendered)) {}

  struct Missing {
    bool text = false, reasoning = false;
  };
  Missing in(size_t message) {
    Missing missing;
    const std::vector<Piece> pieces = pieces_of(messages_[message]);
    if (shows_all(message, pieces)) return missing;
    for (const Piece& piece : pieces)
      if (ignores(message, piece)) (piece.is_reasoning ? missing.reasoning : missing.text) = true;
    return missing;
  }

 private:
  /// Whether the pieces can be followed to the text, in order.
  bool shows_all(size_t message, const std::vector<Piece>& pieces) const {
    const auto own = shown_.find(static_cast<int32_t>(message));
    const std::string_view shown = own == shown_.end() ? std::string_view() : own->second;
    const std::vector<const std::string*> texts = texts_of(messages_[message]);
    size_t at = 0;
    for (const Piece& piece : pieces) {
      const auto wanted = std::string_view(*texts[piece.text]).substr(piece.begin, piece.size);
      const size_t found = shown.find(wanted, at);
      if (found == std::string_view::npos) return false;
      at = found + piece.size;
    }
    return true;
  }

  /// Whether the template gives the same text for another piece.
  bool ignores(size_t message, const Piece& piece) {
    constexpr int kMaxRenderings = 8;  // of one conversation: each takes as long as the first one
    if (++num_renderings_ > kMaxRenderings) return false;
    Json changed = messages_;
    text_in(changed[message], piece.text).replace(piece.begin, piece.size, "qzkvwxjy");
    const auto rendered = chat_template_.render_if_accepted(changed, render_);
    return rendered && rendered->text == rendered_.text;
  }

  const templates::Rendered& rendered_;
  const Json& messages_;
  const templates::ChatTemplate& chat_template_;
  const templates::RenderOptions& render_;
  const std::map<int32_t, std::string> shown_;
  int num_renderings_ = 0;
};

}  // namespace

LeftOut find_left_out(const LabelledConversation& conversation, const Json& messages,
                      const templates::ChatTemplate& chat_template,
                      const templates::RenderOptions& render) {
  const templates::Rendered& rendered = conversation.rendered;
  const std::set<std::string> reasoning(kReasoningKeys.begin(), kReasoningKeys.end());
  std::set<int32_t> trained;  // -1: everything is
  for (const LabelledConversation::Run& run : conversation.runs) trained.insert(run.message);
  TextSearch search(rendered, messages, chat_template, render);
  LeftOut left_out;
  bool last_lacks_reasoning = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const auto index = static_cast<int32_t>(i);
    const bool is_answer = message["role"] == "assistant";
    if (is_answer && !trained.contains(index) && !trained.contains(-1)) continue;
    const TextSearch::Missing missing = search.in(i);
    if (missing.text) ++(is_answer ? left_out.answer_texts : left_out.messages);
    if (!is_answer) continue;
    if (makes_calls(message) && !shows(rendered, index, {"tool_calls", "function_call"}))
      ++left_out.tool_calls;
    const bool reasons = std::any_of(reasoning.begin(), reasoning.end(), [&](const auto& key) {
      return is_given(message, key.c_str());
    });
    last_lacks_reasoning = missing.reasoning || (reasons && !shows(rendered, index, reasoning));
    if (last_lacks_reasoning) ++left_out.earlier_reasoning;
  }
  if (last_lacks_reasoning) --left_out.earlier_reasoning, ++left_out.reasoning;
  const Json& tools = render.tools;
  if (tools.is_array() && !tools.empty() && !shows_a_tool(rendered.text, tools)) left_out.tools = 1;
  return left_out;
}

void drop_empty_answers(LabelledConversation& conversation, const Json& messages) {
  std::set<int32_t> shown;
  for (const templates::OriginSpan& span : conversation.rendered.origins) {
    const Origin& origin = span.origin;
    if (origin.kind == Origin::Kind::kMessage && origin.field != "role")
      shown.insert(origin.message);
  }
  std::erase_if(conversation.runs, [&](const LabelledConversation::Run& run) {
    return run.message >= 0 && !shown.contains(run.message) &&
           makes_calls(messages[static_cast<size_t>(run.message)]);
  });
}

int64_t count_empty_answers(const LabelledConversation& conversation, const Json& messages) {
  std::set<int32_t> trained;
  for (const LabelledConversation::Run& run : conversation.runs) trained.insert(run.message);
  return std::count_if(trained.begin(), trained.end(), [&](int32_t message) {
    if (message < 0 || static_cast<size_t>(message) >= messages.size()) return false;
    const Json& answer = messages[static_cast<size_t>(message)];
    if (answer["role"] != "assistant" || makes_calls(answer)) return false;
    const bool reasons = std::any_of(kReasoningKeys.begin(), kReasoningKeys.end(),
                                     [&](const char* key) { return is_given(answer, key); });
    return !reasons && pieces_of(answer).empty();
  });
}

int64_t count_control_tokens(const LabelledConversation& conversation,
                             const templates::LabelledTokens& tokens,
                             const tokenizer::Tokenizer& tokenizer) {
  std::set<int32_t> messages;
  const auto& origins = conversation.rendered.origins;
  size_t at = 0;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (!tokenizer.is_special(tokens.ids[i])) continue;
    while (at < origins.size() && origins[at].end <= tokens.spans[i].begin) ++at;
    if (at == origins.size()) break;
    const Origin& origin = origins[at].origin;
    const bool whole = tokens.spans[i].end <= origins[at].end;
    if (whole && origin.kind == Origin::Kind::kMessage && origin.field != "role")
      messages.insert(origin.message);
  }
  return static_cast<int64_t>(messages.size());
}

}  // namespace sftrun::data
