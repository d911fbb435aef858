#include "sftrun/model/generation_batch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "batch_sequences.h"
#include "generation_forward.h"
#include "generation_inputs.h"
#include "generation_messages.h"
#include "sftrun/core/error.h"
#include "sftrun/spec/blocks.h"
#include "token_choice.h"

namespace sftrun::model {

using Next = GenerationMessages::Next;

GenerationBatch::GenerationBatch(Decoder& decoder, size_t num_rows, BatchHooks hooks,
                                 layers::CopyRanks* ranks, size_t number)
    : decoder_(decoder),
      hooks_(std::move(hooks)),
      sequences_(std::make_unique<BatchSequences>(decoder, num_rows)),
      bytes_of_state_(SequenceCache(decoder).bytes({.rows = 1, .length = 0})),
      bytes_of_token_(SequenceCache(decoder).bytes({.rows = 1, .length = 1}) - bytes_of_state_),
      has_states_(spec::any_has_state(decoder.arch())),
      has_scores_(decoder.arch().score.has_value()),
      forward_(std::make_unique<GenerationForward>(decoder, ranks)) {
  SFTRUN_CHECK(num_rows > 0);
  if (ranks != nullptr) messages_ = std::make_unique<GenerationMessages>(*ranks, number);
}

GenerationBatch::~GenerationBatch() = default;

size_t GenerationBatch::num_active() const {
  return sequences_->size();
}

size_t GenerationBatch::num_free() const {
  return sequences_->num_free();
}

uint64_t GenerationBatch::cache_bytes(size_t more, int64_t length) const {
  return sequences_->cache_bytes(more, length);
}

void GenerationBatch::add(std::vector<SequenceRequest> requests) {
  SFTRUN_CHECK(requests.size() <= num_free());
  for (SequenceRequest& request : requests) {
    std::vector<int32_t>& tokens = request.prompt.tokens;
    if (has_scores_) tokens.resize(scored_part(tokens, decoder_.batch_target().pad_token).size());
    if (messages_) messages_->added(request);
    sequences_->add(std::move(request));
  }
}

/// Records the chosen tokens, and hands over the answers that are finished.
void GenerationBatch::step() {
  SFTRUN_CHECK(num_active() > 0);
  if (messages_) messages_->tell(Next::kStep);
  make_passes();
  std::vector<CachedSequence>& rows = sequences_->rows();
  std::vector<size_t> finished;
  for (size_t row = 0; row < rows.size(); ++row)
    if (!accept(rows[row])) finished.push_back(row);
  for (auto row = finished.rbegin(); row != finished.rend(); ++row) {
    hooks_.on_finished(rows[*row].request.prompt.index, std::move(rows[*row].result));
    if (messages_) messages_->removed(*row);
    sequences_->remove(*row);
  }
}

void GenerationBatch::finish() {
  if (!messages_) return sequences_->clear();
  drop([](size_t) { return true; });
  do messages_->tell(Next::kStep);
  while (make_passes() > 0);
  messages_->tell(Next::kEnd);
}

void GenerationBatch::rest() {
  if (messages_) messages_->tell(Next::kRest);
}

void GenerationBatch::wake() {
  if (messages_) messages_->ranks().call();
}

void GenerationBatch::drop(const std::function<bool(size_t)>& is_dropped) {
  const std::vector<size_t> dropped = sequences_->drop(is_dropped);
  if (messages_) messages_->dropped(dropped);
}

void GenerationBatch::reset() {
  if (messages_) messages_->tell(Next::kReset);
  sequences_->clear();
}

void GenerationBatch::follow(const std::vector<GenerationBatch*>& batches,
                             const std::function<void()>& before_step) {
  layers::CopyRanks& ranks = batches.at(0)->messages_->ranks();
  SFTRUN_CHECK(!ranks.leads());
  for (;;) {
    const GenerationMessages::Message message = GenerationMessages::hear(ranks);
    GenerationBatch& batch = *batches.at(message.batch);
    BatchSequences& sequences = *batch.sequences_;
    GenerationMessages::make(
        message, {.add = [&](SequenceRequest&& request) { sequences.add(std::move(request)); },
                  .remove = [&](size_t row) { sequences.remove(row); },
                  .drop = [&](const auto& is_dropped) { sequences.drop(is_dropped); }});
    if (message.next == Next::kEnd) return;
    if (message.next == Next::kReset) sequences.clear();
    if (message.next == Next::kRest) ranks.await_call();
    if (message.next != Next::kStep) continue;
    if (before_step) before_step();
    batch.follow_step();
  }
}

void GenerationBatch::follow_step() {
  try {
    make_passes();
  } catch (const NotFiniteError&) {  // which the lead reports
  }
  for (CachedSequence& row : sequences_->rows()) row.result.tokens.push_back(row.next);
}

/// The passes of a step, and as many without a token as ranks make more that gather the same weights.
/// A gated delta net reads one document in a pass.
/// @return passes of the rank that makes most
int64_t GenerationBatch::make_passes() {
  const at::NoGradGuard no_grad;
  const std::vector<size_t> switching = rows_that_change_angles();
  const size_t num_read = sequences_->rows().size();
  const int64_t own = num_passes(switching.size()),
                all = messages_ ? messages_->ranks().max_of_shards(own) : own;
  if (has_states_) {
    while (sequences_->num_waiting() > 0) run(0, sequences_->admit(/*one_prompt=*/true));
    if (num_read > 0) run(num_read, {});
  } else if (num_active() > 0) {
    run(num_read, sequences_->admit(/*one_prompt=*/false));
  }
  if (has_states_) {
    for (const size_t row : switching) run(0, {row});
  } else if (!switching.empty()) {
    run(0, switching);
  }
  for (int64_t pass = own; pass < all; ++pass) forward_->run_nothing();
  return all;
}

/// Of this rank's next step.   @param num_switching rows that are read again
int64_t GenerationBatch::num_passes(size_t num_switching) const {
  const size_t of_states =
      sequences_->num_waiting() + (sequences_->rows().empty() ? 0 : 1) + num_switching;
  const size_t of_rows = (num_active() > 0 ? 1 : 0) + (num_switching > 0 ? 1 : 0);
  return static_cast<int64_t>(has_states_ ? of_states : of_rows);
}

/// Rows whose next token changes the angles of all positions (LongRoPE). They are read again
/// including that token, as in transformers.
std::vector<size_t> GenerationBatch::rows_that_change_angles() const {
  const int64_t limit = decoder_.rope().switches_after();
  const std::vector<CachedSequence>& rows = sequences_->rows();
  std::vector<size_t> switching;
  for (size_t row = 0; limit > 0 && row < rows.size(); ++row)
    if (rows[row].length == limit) switching.push_back(row);
  return switching;
}

/// One pass: fills the caches of `prefill_rows`, adds a token to those of the first `num_decoded`
/// rows, and chooses the next token of each.
void GenerationBatch::run(size_t num_decoded, const std::vector<size_t>& prefill_rows) {
  GenerationInputs inputs(sequences_->rows(), num_decoded, prefill_rows, decoder_);
  sequences_->reserve(inputs.max_length());
  const at::Tensor hidden = forward_->run(inputs, sequences_->caches());
  Choices choices;
  if (forward_->has_head()) choices = choices_of(hidden, inputs);
  if (messages_) choices = messages_->of_head(choices);
  if (!choices.is_finite) throw_not_finite_logits();
  const std::vector<size_t> rows = inputs.rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    CachedSequence& row = sequences_->rows()[rows[i]];
    if (has_scores_) row.result.scores = std::move(choices.scores[i]);
    if (has_scores_) continue;
    row.next = choices.tokens[i];
    row.logprobs = std::move(choices.logprobs[i]);
  }
  if (messages_ && !messages_->leads()) return;
  for (auto& [prompt, scores] : choices.prompt_scores)
    hooks_.on_prompt_scores(prompt, std::move(scores));
}

/// From the output of the last layer, on a rank with the head.
Choices GenerationBatch::choices_of(const at::Tensor& hidden, const GenerationInputs& inputs) {
  const std::vector<CachedSequence>& rows = sequences_->rows();
  Choices choices;
  try {
    forward_->with_head([&] {
      if (has_scores_) {
        choices.scores = head_scores(decoder_, inputs.last_of_rows(hidden));
        return;
      }
      choices.prompt_scores =
          prompt_scores(decoder_, hidden.narrow(0, inputs.decode.count(), inputs.prefill.count()),
                        rows, inputs.prefill);
      const at::Tensor logits = layers::logits_of(decoder_.head(), inputs.last_of_rows(hidden));
      choose_tokens(logits.to(at::kFloat).cpu().contiguous(), rows, inputs.rows(), choices);
    });
  } catch (const NotFiniteError&) {
    return {.is_finite = false};
  }
  return choices;
}

/// Records the chosen token; false when the sequence is finished.
bool GenerationBatch::accept(CachedSequence& row) {
  const SamplingOptions& options = *row.request.options;
  Generation& result = row.result;
  if (options.max_new_tokens == 0 || has_scores_) return false;
  const auto& stops = options.stop_tokens;
  const bool is_stop = std::find(stops.begin(), stops.end(), row.next) != stops.end();
  if (is_stop)
    result.stop_token = row.next;
  else
    result.tokens.push_back(row.next);
  if (options.keeps_logprobs && row.logprobs)
    result.logprobs.push_back({row.logprobs->logprob, row.logprobs->drawn, row.logprobs->entropy});
  NewToken token{row.next, is_stop, std::move(row.logprobs)};
  const bool goes_on =
      !hooks_.on_token || hooks_.on_token(row.request.prompt.index, std::move(token));
  if (is_stop || !goes_on) {
    result.stopped = true;
    return false;
  }
  return static_cast<int64_t>(result.tokens.size()) < options.max_new_tokens;
}

}  // namespace sftrun::model
