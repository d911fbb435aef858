#include "chat_outline.h"

#include <algorithm>
#include <functional>

#include "jinja/unicode.h"
#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"

namespace sftrun::templates {
namespace {

namespace unicode = jinja::unicode;

constexpr std::string_view kBlanks = " \n\t ";

std::string_view trimmed(std::string_view text, bool at_start, bool at_end) {
  while (at_start && !text.empty() && unicode::is_space(decode_char_at(text, 0).code))
    text.remove_prefix(unicode::sequence_length(text, 0));
  while (at_end && !text.empty()) {
    const size_t last = unicode::previous(text, text.size());
    if (!unicode::is_space(decode_char_at(text, last).code)) break;
    text = text.substr(0, last);
  }
  return text;
}

/// A word that does not occur in any template.
std::string sentinel(size_t message) {
  return fmt::format("qzkv{}wxjy", message);
}

/// The literal texts before, between and after the contents of the messages.
using Gaps = std::vector<std::string>;

Gaps gaps_of(const ChatProbe& probe, std::string_view roles, bool add_generation_prompt) {
  const Conversation conversation = conversation_of(roles, sentinel);
  const std::string text = probe.render(conversation, add_generation_prompt);
  Gaps gaps;
  size_t at = 0;
  for (const PlainMessage& message : conversation) {
    const size_t found = text.find(message.text, at);
    const bool is_once = found != std::string::npos && text.find(message.text) == found &&
                         text.find(message.text, found + 1) == std::string::npos;
    if (!is_once) {
      throw NoOutline{fmt::format("it does not render each {} message exactly once and in order",
                                  name_of(message.role))};
    }
    gaps.push_back(text.substr(at, found - at));
    at = found + message.text.size();
  }
  gaps.push_back(text.substr(at));
  return gaps;
}

/// nullopt if the template rejects such conversations or omits messages.
std::optional<Gaps> gaps_if_rendered(const ChatProbe& probe, std::string_view roles) {
  try {
    return gaps_of(probe, roles, true);
  } catch (const TemplateWorkError&) {
    throw;
  } catch (const DataError&) {
    return std::nullopt;
  } catch (const NoOutline&) {
    return std::nullopt;
  }
}

std::string common_characters(std::string_view a, std::string_view b) {
  const auto [end, unused] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto size = static_cast<size_t>(end - a.begin());
  return std::string(utf8_prefix(a, size));  // whole characters
}

void require_equal(const std::string& a, const std::string& b) {
  if (a == b) return;
  throw NoOutline{"the text around a message depends on more than its role"};
}

class Derivation {
 public:
  explicit Derivation(const ChatProbe& probe) : probe_(probe) {}

  ChatOutline run() {
    find_user_and_assistant();
    find_system();
    find_late_system();
    find_assistant_in_front();
    find_trims();
    return std::move(outline_);
  }

 private:
  Turn& at(Role role, TurnPlace place) { return *outline_.turn(role, place); }

  /// The closing text of a turn that is followed by one of `followed`: `tail`, which the template
  /// writes at the end of a conversation, if all of them begin with it (some templates append EOS
  /// there); else their common prefix.
  std::string close_of(std::string tail, const std::vector<std::string>& followed) const {
    const auto is_close = [&] {
      return std::all_of(followed.begin(), followed.end(),
                         [&](const std::string& next) { return next.starts_with(tail); });
    };
    if (is_close()) return tail;
    const std::string& eos = probe_.options().eos_token;
    if (tail.ends_with(eos)) tail.resize(tail.size() - eos.size());
    if (is_close()) return tail;
    std::string common = tail;
    for (const std::string& next : followed) common = common_characters(common, next);
    return common;
  }

  void find_user_and_assistant() {
    const Gaps gaps = gaps_of(probe_, "uauau", true);
    const std::string &to_assistant = gaps[1], &to_user = gaps[2], &to_end = gaps[5];
    require_equal(to_assistant, gaps[3]);
    require_equal(to_user, gaps[4]);
    const Gaps one = gaps_of(probe_, "u", true);
    require_equal(gaps[0], one[0]);
    require_equal(to_end, one[1]);
    std::vector<std::string> behind_user = {to_assistant, to_end}, behind_assistant = {to_user};
    if (const auto late = gaps_if_rendered(probe_, "usu")) behind_user.push_back((*late)[1]);
    if (const auto late = gaps_if_rendered(probe_, "uasu")) behind_assistant.push_back((*late)[2]);
    const std::string user_close = close_of(gaps_of(probe_, "u", false)[1], behind_user);
    const std::string assistant_close = close_of(gaps_of(probe_, "ua", false)[2], behind_assistant);
    outline_.generation_prompt = to_end.substr(user_close.size());
    outline_.turn(Role::kUser, TurnPlace::kFirst) = {.open = gaps[0], .close = user_close};
    outline_.turn(Role::kUser, TurnPlace::kLater) = {.open = to_user.substr(assistant_close.size()),
                                                     .close = user_close};
    outline_.turn(Role::kAssistant, TurnPlace::kLater) = {
        .open = to_assistant.substr(user_close.size()), .close = assistant_close};
  }

  void find_system() {
    const std::optional<Gaps> gaps = gaps_if_rendered(probe_, "suau");
    if (!gaps) return;
    const Turn& user = at(Role::kUser, TurnPlace::kLater);
    require_equal((*gaps)[2], user.close + at(Role::kAssistant, TurnPlace::kLater).open);
    std::string tail;
    try {
      tail = gaps_of(probe_, "s", false)[1];
    } catch (const DataError&) {  // rejected: the system text must be part of the user's message
    } catch (const NoOutline&) {
    }
    const std::string& to_user = (*gaps)[1];
    const std::string close = close_of(tail, {to_user});
    outline_.turn(Role::kSystem, TurnPlace::kFirst) = {.open = (*gaps)[0], .close = close};
    outline_.turn(Role::kUser, TurnPlace::kAfterSystem) = {.open = to_user.substr(close.size()),
                                                           .close = user.close};
    // For [system, assistant, …]: truncated long conversations begin this way.
    const std::optional<Gaps> cut = gaps_if_rendered(probe_, "sau");
    if (!cut || !(*cut)[1].starts_with(close)) return;
    outline_.turn(Role::kAssistant, TurnPlace::kAfterSystem) = {
        .open = (*cut)[1].substr(close.size()),
        .close = at(Role::kAssistant, TurnPlace::kLater).close};
  }

  /// A system message inside the conversation.
  void find_late_system() {
    std::optional<Gaps> gaps = gaps_if_rendered(probe_, "usu");
    if (!gaps) return;
    const Turn& user = at(Role::kUser, TurnPlace::kLater);
    if (!(*gaps)[1].starts_with(user.close) || !(*gaps)[2].ends_with(user.open)) return;
    outline_.turn(Role::kSystem, TurnPlace::kLater) = {
        .open = (*gaps)[1].substr(user.close.size()),
        .close = (*gaps)[2].substr(0, (*gaps)[2].size() - user.open.size())};
  }

  void find_assistant_in_front() {
    const std::optional<Gaps> gaps = gaps_if_rendered(probe_, "au");
    if (!gaps) return;
    outline_.turn(Role::kAssistant, TurnPlace::kFirst) = {
        .open = (*gaps)[0], .close = at(Role::kAssistant, TurnPlace::kLater).close};
  }

  void find_trims() {
    for (const std::string_view roles : {"uau", "suau", "usu", "au", "sau"}) {
      if (!gaps_if_rendered(probe_, roles)) continue;
      for (size_t i = 0; i < roles.size(); ++i) find_trims_of(roles, i);
    }
    if (!outline_.turn(Role::kSystem, TurnPlace::kFirst))
      outline_.turn(Role::kUser, TurnPlace::kAfterSystem) =
          outline_.turn(Role::kUser, TurnPlace::kFirst);
    // If the template rejects them: the same as elsewhere.
    for (const TurnPlace place : {TurnPlace::kFirst, TurnPlace::kAfterSystem}) {
      std::optional<Turn>& assistant = outline_.turn(Role::kAssistant, place);
      if (!assistant) assistant = outline_.turn(Role::kAssistant, TurnPlace::kLater);
    }
  }

  /// Finds which white space around one message the template trims.
  void find_trims_of(std::string_view roles, size_t message) {
    const Conversation plain = conversation_of(roles, sentinel);
    std::optional<Turn>& turn = outline_.turn(plain[message].role, place_of(plain, message));
    if (!turn) return;
    Conversation padded = plain;
    padded[message].text = fmt::format("{0}{1}{0}", kBlanks, plain[message].text);
    const std::string without = probe_.render(plain, true), with = probe_.render(padded, true);
    const size_t at = without.find(plain[message].text);
    for (const bool at_start : {false, true}) {
      for (const bool at_end : {false, true}) {
        std::string expected = without;
        expected.replace(at, plain[message].text.size(),
                         trimmed(padded[message].text, at_start, at_end));
        if (expected != with) continue;
        turn->trims_start = at_start;
        turn->trims_end = at_end;
        return;
      }
    }
    throw NoOutline{
        fmt::format("it changes the white space around {} messages", name_of(plain[message].role))};
  }

  const ChatProbe& probe_;
  ChatOutline outline_;
};

}  // namespace

const char* name_of(Role role) {
  constexpr std::array kNames = {"system", "user", "assistant"};
  return kNames[static_cast<size_t>(role)];
}

TurnPlace place_of(const Conversation& conversation, size_t message) {
  if (message == 0) return TurnPlace::kFirst;
  return message == 1 && conversation[0].role == Role::kSystem ? TurnPlace::kAfterSystem
                                                               : TurnPlace::kLater;
}

Conversation conversation_of(std::string_view roles,
                             const std::function<std::string(size_t)>& text_of) {
  Conversation conversation;
  for (size_t i = 0; i < roles.size(); ++i) {
    const Role role = roles[i] == 's'   ? Role::kSystem
                      : roles[i] == 'u' ? Role::kUser
                                        : Role::kAssistant;
    conversation.push_back({role, text_of(i)});
  }
  return conversation;
}

std::string ChatOutline::render(const Conversation& conversation) const {
  std::string text;
  for (size_t i = 0; i < conversation.size(); ++i) {
    const PlainMessage& message = conversation[i];
    const bool is_last = i + 1 == conversation.size();
    const std::optional<Turn>& known = turn(message.role, place_of(conversation, i));
    if (known) {
      text += known->open;
      text += trimmed(message.text, known->trims_start, known->trims_end);
      if (!is_last || message.role != Role::kAssistant) text += known->close;
    }
    if (is_last && message.role != Role::kAssistant) text += generation_prompt;
  }
  return text;
}

std::string ChatProbe::render(const Conversation& conversation, bool add_generation_prompt) const {
  Json messages = Json::array();
  for (const PlainMessage& message : conversation)
    messages.push_back({{"role", name_of(message.role)}, {"content", message.text}});
  RenderOptions options = options_;
  options.add_generation_prompt = add_generation_prompt;
  return template_.render(messages, options).text;
}

/// As in transformers: appends a tag to the last message and cuts the text there. The tag ends with
/// unusual white space, which shows whether the template trims.
std::string ChatProbe::prompt(const Conversation& conversation) const {
  if (conversation.back().role != Role::kAssistant) return render(conversation, true);
  constexpr std::string_view kTag = "qzkv to be continued wxjy\n \t\n";
  Conversation tagged = conversation;
  tagged.back().text += kTag;
  std::string text = render(tagged, false);
  const size_t at = text.rfind(trimmed(kTag, false, true));
  if (at == std::string::npos) throw DataError("the template omits the last message");
  const bool keeps_white_space = std::string_view(text).substr(at).starts_with(kTag);
  text.resize(at);
  return keeps_white_space ? text : std::string(trimmed(text, false, true));
}

ChatOutline derive_outline(const ChatProbe& probe) {
  return Derivation(probe).run();
}

}  // namespace sftrun::templates
