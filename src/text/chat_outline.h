#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/text/chat_template.h"

/// What a chat template comes to for plain conversations: literal texts around what messages say.
namespace sftrun::text {

enum class Role : uint8_t { kSystem, kUser, kAssistant };
/// What a turn's texts may depend on beside its role: where it stands.
enum class TurnPlace : uint8_t { kFirst, kAfterSystem, kLater };
inline constexpr std::array kRoles = {Role::kSystem, Role::kUser, Role::kAssistant};
inline constexpr std::array kPlaces = {TurnPlace::kFirst, TurnPlace::kAfterSystem,
                                       TurnPlace::kLater};

const char* name_of(Role role);

struct PlainMessage {
  Role role = Role::kUser;
  std::string text;
};
/// No two neighbours of one role: Ollama joins those before its template sees them.
using Conversation = std::vector<PlainMessage>;

/// kAfterSystem: behind a system message that opens the conversation.
TurnPlace place_of(const Conversation& conversation, size_t message);
/// "su": a system message and a user's. Messages say `text_of(i)`.
Conversation conversation_of(std::string_view roles,
                             const std::function<std::string(size_t)>& text_of);

/// One message: `open`, what it says, `close`.
struct Turn {
  std::string open, close;
  bool trims_start = false, trims_end = false;  ///< white space, as Python's str.strip
  bool operator==(const Turn&) const = default;
};

/// What a conversation is to render to, behind a user's message with the generation prompt, and
/// behind an assistant's, which is to be continued, up to its last character.
///     turns ‖ generation_prompt, or the last turn without its `close`
struct ChatOutline {
  std::array<std::array<std::optional<Turn>, kPlaces.size()>, kRoles.size()> turns;
  std::string generation_prompt;

  /// Nothing is written of messages without a turn.
  std::optional<Turn>& turn(Role role, TurnPlace place) {
    return turns[static_cast<size_t>(role)][static_cast<size_t>(place)];
  }
  const std::optional<Turn>& turn(Role role, TurnPlace place) const {
    return turns[static_cast<size_t>(role)][static_cast<size_t>(place)];
  }
  std::string render(const Conversation& conversation) const;
};

/// A chat template that is asked for plain conversations.
class ChatProbe {
 public:
  ChatProbe(const ChatTemplate& chat_template, RenderOptions options)
      : template_(chat_template), options_(std::move(options)) {}

  /// @throws DataError where the template refuses.
  std::string render(const Conversation& conversation, bool add_generation_prompt) const;
  /// What `ChatOutline::render` is to equal: behind an assistant's message transformers'
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
/// From where words that are in no template come out of it. Right for the conversations that it was
/// derived from; whether for others, is to be checked.
/// @throws NoOutline, and DataError as the template does for the plainest conversations
ChatOutline derive_outline(const ChatProbe& probe);

}  // namespace sftrun::text
