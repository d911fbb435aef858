#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/templates/chat_template.h"

/// Converts chat templates to Ollama's format: Go's text/template over `.Messages`.
namespace sftrun::templates {

struct OllamaTemplate {
  /// Empty if no equal template can be written.
  std::optional<std::string> text;
  std::string reason;              ///< why it is empty
  std::vector<std::string> notes;  ///< notes for the user, in whole sentences
};

/// Derived from renderings of conversations, and tested on conversations: for conversations of
/// texts (no tools, no images), with or without a first system message, with alternating user and
/// assistant messages, it renders
///     chat_template(messages, add_generation_prompt)     after a user message
///     chat_template(messages, continue_final_message)    after an assistant message
/// byte for byte, without `added_bos` at the beginning. The same for system messages elsewhere and
/// conversations that begin with an assistant, if the chat template accepts them. The tests use
/// conversations of up to nine messages that contain markers, braces, quotes, thinking, white space
/// around a text, and every quoted string of the template's source. No message is empty.
/// @param options `bos_token` and so on, as in training
/// @param added_bos token that the runner adds before every prompt (tokenizer.ggml.add_bos_token);
/// empty: none
OllamaTemplate ollama_template_of(const ChatTemplate& chat_template, const RenderOptions& options,
                                  std::string_view added_bos);

}  // namespace sftrun::templates
