#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "generation_inputs.h"
#include "generation_messages.h"

/// From the output of the last layer to tokens and their log-probabilities.
namespace sftrun::model {

/// Chooses the next token of each of `rows`, by the options of its sequence.
/// @param logits [n, vocab] fp32 on the host, one for each of `rows`
/// @param choices receives tokens and their log-probabilities
/// @throws NotFiniteError
void choose_tokens(const at::Tensor& logits, const std::vector<CachedSequence>& sequences,
                   const std::vector<size_t>& rows, Choices& choices);

/// Scores of the prompts that are read for the first time, where they are asked for.
/// @param hidden [inputs.prefill.count(), hidden] output of the last layer
/// @throws NotFiniteError
PromptScores prompt_scores(const Decoder& decoder, const at::Tensor& hidden,
                           const std::vector<CachedSequence>& sequences,
                           const GenerationInputs::Prefill& prefill);

/// Of a model with a head of scores.
/// @param hidden [n, hidden] output of the last layer for the scored tokens   @return [n][labels]
/// @throws NotFiniteError
std::vector<std::vector<float>> head_scores(const Decoder& decoder, const at::Tensor& hidden);

[[noreturn]] void throw_not_finite_logits();

}  // namespace sftrun::model
