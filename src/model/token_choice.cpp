#include "token_choice.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "sampling.h"
#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"

namespace sftrun::model {
namespace {

/// @param logits [vocab]   @return the next token of the sequence
DrawnToken choose(const CachedSequence& sequence, const at::Tensor& logits_of_last) {
  const SamplingOptions& options = *sequence.request.options;
  const bool penalizes = options.repetition_penalty != 1;
  const at::Tensor logits = penalizes ? logits_of_last.clone() : logits_of_last;
  const std::span values(logits.data_ptr<float>(), static_cast<size_t>(logits.numel()));
  if (!all_finite(values)) throw_not_finite_logits();
  const Prompt& prompt = sequence.request.prompt;
  const std::vector<int32_t>& generated = sequence.result.tokens;
  if (penalizes) penalize_repetition(values, prompt.tokens, generated, options.repetition_penalty);
  return sample_token(values, options, {prompt.stream, prompt.draw, generated.size()});
}

/// In pieces, because the logits of a long prompt need more memory than the model.
/// @param hidden [T, hidden] of a prompt
std::vector<TokenLogprobs> scores_of(const Decoder& decoder, const at::Tensor& hidden,
                                     const std::vector<int32_t>& tokens, size_t num_top) {
  constexpr int64_t kLogits = int64_t{1} << 24;  // of a piece
  const int64_t max_rows = std::max<int64_t>(1, kLogits / decoder.arch().vocab_size);
  const auto num_scored = static_cast<int64_t>(tokens.size()) - 1;
  std::vector<TokenLogprobs> scores;
  for (int64_t first = 0; first < num_scored; first += max_rows) {
    const int64_t count = std::min(max_rows, num_scored - first);
    const std::vector<int64_t> predicted(tokens.begin() + first + 1,
                                         tokens.begin() + first + 1 + count);
    const at::Tensor logits =
        layers::logits_of(decoder.head(), hidden.narrow(0, first, count)).to(at::kFloat);
    for (TokenLogprobs& score :
         token_logprobs(logits, at::tensor(predicted).to(logits.device()), num_top))
      scores.push_back(std::move(score));
  }
  return scores;
}

/// @param logits fp32 [1, vocab]
float entropy_of(const at::Tensor& logits) {
  const at::Tensor log_p = at::log_softmax(logits, -1);
  return -(log_p.exp() * log_p).nansum().item<float>();
}

}  // namespace

void throw_not_finite_logits() {
  throw NotFiniteError("the logits of the next token are NaN or infinite", {},
                       "use --dtype fp32; if that does not help, the weights are broken");
}

PromptScores prompt_scores(const Decoder& decoder, const at::Tensor& hidden,
                           const std::vector<CachedSequence>& sequences,
                           const GenerationInputs::Prefill& prefill) {
  PromptScores of_prompts;
  for (size_t i = 0; i < prefill.rows.size(); ++i) {
    const SequenceRequest& request = sequences[prefill.rows[i]].request;
    const bool is_read_again = !sequences[prefill.rows[i]].result.tokens.empty();
    if (!request.scores_prompt || is_read_again) continue;
    const std::vector<int32_t>& tokens = request.prompt.tokens;
    const at::Tensor of_prompt =
        hidden.narrow(0, prefill.cu_seqlens[i], static_cast<int64_t>(tokens.size()));
    std::vector<TokenLogprobs> scores =
        scores_of(decoder, of_prompt, tokens, *request.num_logprobs);
    for (const TokenLogprobs& score : scores)
      if (!std::isfinite(score.logprob)) throw_not_finite_logits();
    of_prompts.emplace_back(request.prompt.index, std::move(scores));
  }
  return of_prompts;
}

std::vector<std::vector<float>> head_scores(const Decoder& decoder, const at::Tensor& hidden) {
  const at::Tensor scores = layers::scores_of(decoder.head(), hidden).cpu().contiguous();
  const std::span values(scores.data_ptr<float>(), static_cast<size_t>(scores.numel()));
  if (!all_finite(values))
    throw NotFiniteError("the scores of a text are NaN or infinite", {},
                         "use --dtype fp32; if that does not help, the weights are broken");
  const auto width = static_cast<size_t>(scores.size(1));
  std::vector<std::vector<float>> of_rows;
  for (size_t first = 0; first < values.size(); first += width) {
    const std::span row = values.subspan(first, width);
    of_rows.emplace_back(row.begin(), row.end());
  }
  return of_rows;
}

void choose_tokens(const at::Tensor& logits, const std::vector<CachedSequence>& sequences,
                   const std::vector<size_t>& rows, Choices& choices) {
  choices.tokens.resize(rows.size());
  choices.logprobs.resize(rows.size());
  std::vector<DrawnToken> drawn(rows.size());
  at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      drawn[i] = choose(sequences[rows[i]], logits[static_cast<int64_t>(i)]);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    choices.tokens[i] = drawn[i].token;
    const std::optional<size_t>& wanted = sequences[rows[i]].request.num_logprobs;
    if (!wanted) continue;
    const at::Tensor chosen = at::full({1}, int64_t{choices.tokens[i]}, at::kLong);
    const at::Tensor row = logits.narrow(0, static_cast<int64_t>(i), 1);
    choices.logprobs[i] = token_logprobs(row, chosen, *wanted)[0];
    choices.logprobs[i]->drawn = static_cast<float>(drawn[i].logprob);
    if (sequences[rows[i]].request.options->keeps_logprobs)
      choices.logprobs[i]->entropy = entropy_of(row);
  }
}

}  // namespace sftrun::model
