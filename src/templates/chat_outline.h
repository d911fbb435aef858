#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/templates/chat_template.h"

/// A chat template for plain conversations: literal texts around the contents of messages.
namespace sftrun::templates {

enum class Role : uint8_t { kSystem, kUser, kAssistant };
/// The position of a turn, on which its texts may depend, besides its role.
enum class TurnPlace : uint8_t { kFirst, kAfterSystem, kLater };
inline constexpr std::array kRoles = {Role::kSystem, Role::kUser, Role::kAssistant};
inline constexpr std::array kPlaces = {TurnPlace::kFirst, TurnPlace::kAfterSystem,
                                       TurnPlace::kLater};

const char* name_of(Role role);

struct PlainMessage {
  Role role = Role::kUser;
  std::string text;
};
/// Adjacent messages have different roles: Ollama joins messages of the same role before its
/// template.
using Conversation = std::vector<PlainMessage>;

/// kAfterSystem: after a system message at the beginning of the conversation.
TurnPlace place_of(const Conversation& conversation, size_t message);
/// "su": a system message and a user's. Messages say `text_of(i)`.
Conversation conversation_of(std::string_view roles,
                             const std::function<std::string(size_t)>& text_of);

/// One message: `open`, its content, `close`.
struct Turn {
  std::string open, close;
  bool trims_start = false, trims_end = false;  ///< white space, as Python's str.strip
  bool operator==(const Turn&) const = default;
};

/// The expected rendering of a conversation: after a user message with the generation prompt; after
/// an assistant message, which is to be continued, up to its last character.
///     turns ‖ generation_prompt, or the last turn without its `close`
struct ChatOutline {
  std::array<std::array<std::optional<Turn>, kPlaces.size()>, kRoles.size()> turns;
  std::string generation_prompt;

  /// Messages without a turn are omitted.
  std::optional<Turn>& turn(Role role, TurnPlace place) {
    return turns[static_cast<size_t>(role)][static_cast<size_t>(place)];
  }
  const std::optional<Turn>& turn(Role role, TurnPlace place) const {
    return turns[static_cast<size_t>(role)][static_cast<size_t>(place)];
  }
  std::string render(const Conversation& conversation) const;
};

/// Renders plain conversations with a chat template.
class ChatProbe {
 public:
  ChatProbe(const ChatTemplate& chat_template, RenderOptions options)
      : template_(chat_template), options_(std::move(options)) {}

  /// @throws DataError if the template rejects the conversation.
  std::string render(const Conversation& conversation, bool add_generation_prompt) const;
  /// The expected result of `ChatOutline::render`: after an assistant message as transformers'
  /// `continue_final_message`.
  std::string prompt(const Conversation& conversation) const;
  const RenderOptions& options() const { return options_; }

 private:
  const ChatTemplate& template_;
  RenderOptions options_;
};

/// Reasons why a template has no outline.
struct NoOutline {
  std::string reason;
};
/// Derives the outline from the positions of unique words in the template's output. It is correct
/// for the conversations it was derived from; others must be checked.
/// @throws NoOutline, and DataError if the template rejects simple conversations
ChatOutline derive_outline(const ChatProbe& probe);

}  // namespace sftrun::templates
