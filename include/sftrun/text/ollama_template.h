#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/text/chat_template.h"

/// Chat templates in the language that Ollama has them in: Go's text/template over `.Messages`.
namespace sftrun::text {

struct OllamaTemplate {
  /// None where nothing can be written that is equal to the chat template.
  std::optional<std::string> text;
  std::string reason;              ///< why there is none
  std::vector<std::string> notes;  ///< what else is to be known, in whole sentences
};

/// Written from what the template makes of conversations, and held to that: for conversations of
/// texts alone (no tools, no images), with and without a system message in front, users and
/// assistants taking turns, it renders
///     chat_template(messages, add_generation_prompt)     behind a user's message
///     chat_template(messages, continue_final_message)    behind an assistant's
/// to the byte, less `added_bos` in front; and so with system messages elsewhere and an assistant
/// that begins, wherever the chat template takes those. Tried in conversations of up to nine
/// messages, which say markers, braces, quotes, thinking, white space around a text, and everything
/// that the template's source has between quotes; none of them says nothing.
/// @param options `bos_token` and so on, as in training
/// @param added_bos what the runner puts before every prompt (tokenizer.ggml.add_bos_token); empty:
/// nothing
OllamaTemplate ollama_template_of(const ChatTemplate& chat_template, const RenderOptions& options,
                                  std::string_view added_bos);

}  // namespace sftrun::text
