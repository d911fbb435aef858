#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "sftrun/templates/chat_labels.h"

/// Empty reasoning that a template writes (`<think>\n\n</think>`): training on it teaches a
/// reasoning model not to reason.
namespace sftrun::data {

/// What encloses reasoning, by families of models.
struct ThinkingMarks {
  std::string_view opener, closer;
};
inline constexpr std::array kThinkingMarks = {
    ThinkingMarks{"<think>", "</think>"},
    ThinkingMarks{"<|START_THINKING|>", "<|END_THINKING|>"},
    ThinkingMarks{"[THINK]", "[/THINK]"},
    ThinkingMarks{"<seed:think>", "</seed:think>"},
    ThinkingMarks{"<mm:think>", "</mm:think>"},
    ThinkingMarks{"<|channel>thought", "<channel|>"}};

/// The empty reasoning with which an answer begins, with the white space around it; nullopt: none.
/// Where the generation prompt opens the reasoning (Qwen 3.5), or nothing does (MiniMax M3), it is
/// what closes it.
/// @param answer from the end of its generation prompt
std::optional<tokenizer::ByteSpan> empty_thinking_at(std::string_view text,
                                                     tokenizer::ByteSpan answer);

/// The empty reasoning in the runs of a conversation: each begins an answer, or the text of one
/// behind words of the template.
std::vector<tokenizer::ByteSpan> find_empty_thinking(
    const templates::LabelledConversation& conversation);

/// Removes these spans from the runs.
void drop_spans(std::vector<templates::LabelledConversation::Run>& runs,
                const std::vector<tokenizer::ByteSpan>& spans);

}  // namespace sftrun::data
