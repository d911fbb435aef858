#include "sftrun/model/generation_batch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "generation_messages.h"
#include "sampling.h"
#include "sequence_cache.h"
#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/data/example.h"
#include "sftrun/model/unit_use.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::model {
namespace {

data::Batch batch_of(const std::vector<std::vector<int32_t>>& documents) {
  data::Batch batch;
  batch.cu_seqlens = {0};
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto length = static_cast<int32_t>(documents[i].size());
    SFTRUN_CHECK(length > 0);
    batch.tokens.insert(batch.tokens.end(), documents[i].begin(), documents[i].end());
    for (int32_t position = 0; position < length; ++position)
      batch.position_ids.push_back(position);
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.document_keys.push_back(static_cast<uint32_t>(i));
    batch.max_seqlen = std::max(batch.max_seqlen, length);
  }
  batch.labels.assign(batch.tokens.size(), data::kIgnoreIndex);
  return batch;
}

[[noreturn]] void throw_not_finite() {
  throw NotFiniteError("the logits of the next token are NaN or infinite", {},
                       "use --dtype fp32; if that does not help, the weights are broken");
}

std::vector<size_t> all_rows(size_t count) {
  std::vector<size_t> rows;
  for (size_t row = 0; row < count; ++row) rows.push_back(row);
  return rows;
}

}  // namespace

/// The sequences of a pass that get their next token: the first rows of the cache.
struct Decode {
  std::vector<int64_t> positions, lengths, fed;  ///< tokens that are read, and their places
  layers::BatchContext context;
  at::Tensor places;  ///< `positions` on the device
  std::optional<layers::StepMasks> masks;
  int64_t count() const { return static_cast<int64_t>(fed.size()); }
};

/// The sequences of a pass that are read from their start, as one packed batch.
struct Prefill {
  std::vector<size_t> rows;
  PackedBatch packed;
  std::vector<int32_t> cu_seqlens;
  int64_t longest = 0;
  int64_t count() const { return cu_seqlens.back(); }
};

using Next = GenerationMessages::Next;

int64_t GenerationBatch::longest_of(const SequenceRequest& request) {
  return static_cast<int64_t>(request.prompt.tokens.size()) + request.options->max_new_tokens;
}

GenerationBatch::GenerationBatch(Decoder& decoder, size_t num_rows, BatchHooks hooks,
                                 layers::CopyRanks* ranks, size_t number)
    : decoder_(decoder),
      num_rows_(num_rows),
      hooks_(std::move(hooks)),
      cache_(std::make_unique<SequenceCache>(decoder)),
      bytes_of_token_(cache_->bytes({.rows = 1, .length = 1})) {
  SFTRUN_CHECK(num_rows > 0);
  has_states_ = spec::any_has_state(decoder_.arch());
  if (ranks != nullptr) messages_ = std::make_unique<GenerationMessages>(*ranks, number);
}

GenerationBatch::~GenerationBatch() = default;

void GenerationBatch::add(std::vector<SequenceRequest> requests) {
  SFTRUN_CHECK(requests.size() <= num_free());
  for (SequenceRequest& request : requests) {
    if (messages_) messages_->added(request);
    unread_.push_back(std::move(request));
  }
}

bool GenerationBatch::has_embedding() const {
  return decoder_.held_units().contains(decoder_.embedding_unit());
}

bool GenerationBatch::has_head() const {
  return decoder_.held_units().contains(decoder_.head_unit());
}

/// Rows for the prompts that the next pass reads. A gated delta net reads one document in a pass.
std::vector<size_t> GenerationBatch::take_unread() {
  constexpr size_t kMaxTokens = 4096;  // beyond that a pass is no faster per token
  std::vector<size_t> taken;
  for (size_t tokens = 0; !unread_.empty() && tokens < kMaxTokens;) {
    if (has_states_ && !taken.empty()) break;
    tokens += unread_.front().prompt.tokens.size();
    taken.push_back(rows_.size());
    rows_.push_back({.request = std::move(unread_.front())});
    unread_.pop_front();
  }
  return taken;
}

void GenerationBatch::step() {
  SFTRUN_CHECK(num_active() > 0);
  if (messages_) messages_->tell(Next::kStep);
  make_passes();
  accept_and_free(all_rows(rows_.size()));
}

void GenerationBatch::finish() {
  if (!messages_) return clear();
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

void GenerationBatch::follow(const std::vector<GenerationBatch*>& batches,
                             const std::function<void()>& before_step) {
  layers::CopyRanks& ranks = batches.at(0)->messages_->ranks();
  SFTRUN_CHECK(!ranks.leads());
  for (;;) {
    const GenerationMessages::Message message = GenerationMessages::hear(ranks);
    GenerationBatch& batch = *batches.at(message.batch);
    GenerationMessages::make(
        message,
        {.add = [&](SequenceRequest&& request) { batch.unread_.push_back(std::move(request)); },
         .remove = [&](size_t row) { batch.remove(row); },
         .drop = [&](const auto& is_dropped) { batch.drop_rows(is_dropped); }});
    if (message.next == Next::kEnd) return;
    if (message.next == Next::kReset) batch.clear();
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
  for (Row& row : rows_) row.result.tokens.push_back(row.next);
}

/// The passes of a step, and as many without a token as ranks make more that gather the same weights.
/// @return passes of the rank that makes most
int64_t GenerationBatch::make_passes() {
  const at::NoGradGuard no_grad;
  const std::vector<size_t> switching = rows_that_change_angles();
  const size_t num_read = rows_.size();
  const int64_t own = num_passes(!switching.empty()),
                all = messages_ ? messages_->ranks().max_of_shards(own) : own;
  if (has_states_) {
    for (std::vector<size_t> row = take_unread(); !row.empty(); row = take_unread()) run(0, row);
    if (num_read > 0) run(num_read, {});
  } else if (num_active() > 0) {
    run(num_read, take_unread());
  }
  if (!switching.empty()) run(0, switching);
  for (int64_t pass = own; pass < all; ++pass) run_nothing();
  return all;
}

/// Of this rank's next step.   @param reads_again whether rows change their angles
int64_t GenerationBatch::num_passes(bool reads_again) const {
  const auto of_states = static_cast<int64_t>(unread_.size() + (rows_.empty() ? 0 : 1));
  const int64_t of_rows = num_active() > 0 ? 1 : 0;
  return (has_states_ ? of_states : of_rows) + (reads_again ? 1 : 0);
}

layers::UnitHooks* GenerationBatch::unit_hooks() {
  return messages_ ? messages_->ranks().hooks() : nullptr;
}

template <typename Body>
void GenerationBatch::with_unit(int64_t unit, Body&& body) {
  use_unit(decoder_, unit_hooks(), unit, layers::UnitPass::kForward, body);
}

/// A pass for the other ranks alone.
void GenerationBatch::run_nothing() {
  const layers::UnitRange held = decoder_.held_units();
  for (int64_t unit = held.first; unit < held.end; ++unit) with_unit(unit, [] {});
}

Decode GenerationBatch::next_tokens(size_t count) {
  Decode decode;
  for (size_t i = 0; i < count; ++i) {
    Row& row = rows_[i];
    decode.positions.push_back(row.length++);
    decode.lengths.push_back(row.length);
    decode.fed.push_back(row.next);
  }
  if (count == 0) return decode;
  decoder_.rope().fill_positions(decode.context, decode.positions, device());
  decode.places = at::tensor(decode.positions).to(device());
  decode.masks.emplace(decode.lengths, device());
  return decode;
}

/// Rows with their tokens so far.
Prefill GenerationBatch::texts_of(const std::vector<size_t>& rows) {
  Prefill prefill{.rows = rows, .cu_seqlens = {0}};
  if (rows.empty()) return prefill;
  std::vector<std::vector<int32_t>> documents;
  for (const size_t row : rows) {
    Row& sequence = rows_[row];
    std::vector<int32_t> tokens = sequence.request.prompt.tokens;
    tokens.insert(tokens.end(), sequence.result.tokens.begin(), sequence.result.tokens.end());
    sequence.length = static_cast<int64_t>(tokens.size());
    prefill.longest = std::max(prefill.longest, sequence.length);
    documents.push_back(std::move(tokens));
  }
  const data::Batch batch = batch_of(documents);
  prefill.cu_seqlens = batch.cu_seqlens;
  prefill.packed = prepare_batch(batch, decoder_.rope(), decoder_.batch_target(), {});
  return prefill;
}

/// One pass: fills the caches of the rows in `reading`, adds a token to those of the first
/// `num_decoded` rows, and chooses the next token of each.
void GenerationBatch::run(size_t num_decoded, const std::vector<size_t>& rows_to_read) {
  Decode decode = next_tokens(num_decoded);
  Prefill prefill = texts_of(rows_to_read);
  constexpr int64_t kFirstTokens = 64;  // of the answers
  int64_t longest = rows_to_read.empty() ? 0 : prefill.longest + kFirstTokens;
  for (const int64_t length : decode.lengths) longest = std::max(longest, length);
  reserve(longest);

  using Pass = layers::DequantPrefetcher::Pass;
  decoder_.prepare_joints(rows_to_read.empty() ? Pass::kDecoding : Pass::kForward, unit_hooks());
  layers::BatchContext context = rows_to_read.empty() ? decode.context : prefill.packed.context;
  at::Tensor tokens = at::tensor(decode.fed, at::kLong).to(device());
  if (!rows_to_read.empty()) {
    tokens = at::cat({tokens.to(prefill.packed.tokens.scalar_type()), prefill.packed.tokens});
    for (size_t i = 0; num_decoded > 0 && i < context.ropes.size(); ++i) {
      const kernels::RopeAngles& first = decode.context.ropes[i];
      context.ropes[i] = {at::cat({first.cos, context.ropes[i].cos}),
                          at::cat({first.sin, context.ropes[i].sin})};
    }
  }
  at::Tensor hidden;
  if (has_embedding()) {
    with_unit(decoder_.embedding_unit(), [&] {
      hidden = decoder_.embed(tokens);
      decoder_.open_shared_state(context, tokens, hidden);
    });
  } else {
    hidden = received_hidden(tokens.size(0));
  }
  hidden = run_layers(std::move(hidden), context, decode, prefill);
  end_pass(hidden, decode, prefill);
}

/// From the stage before.
at::Tensor GenerationBatch::received_hidden(int64_t num_tokens) {
  const at::Tensor hidden =
      at::empty({num_tokens, decoder_.arch().hidden_size},
                at::TensorOptions().dtype(decoder_.options().dtype).device(device()));
  messages_->ranks().links()->receive_hidden(hidden);
  return hidden;
}

/// The layers that this rank has.
at::Tensor GenerationBatch::run_layers(at::Tensor hidden, const layers::BatchContext& context,
                                       Decode& decode, const Prefill& prefill) {
  const layers::GenerationPass pass{.context = context,
                                    .decode = {.count = decode.count(),
                                               .positions = decode.places,
                                               .masks = decode.masks ? &*decode.masks : nullptr},
                                    .prefill = {.rows = prefill.rows,
                                                .cu_seqlens = prefill.cu_seqlens,
                                                .context = &prefill.packed.context},
                                    .caches = cache_->layers()};
  for (size_t l = 0; l < decoder_.layers().size(); ++l) {
    const int64_t unit = decoder_.layer_unit(static_cast<int64_t>(l));
    if (!decoder_.held_units().contains(unit)) continue;
    with_unit(unit, [&] { hidden = layers::generate_layer(decoder_.layers()[l], hidden, pass); });
  }
  return hidden;
}

/// Chooses the next token of each row from the last layer's output, or sends that to the next stage.
void GenerationBatch::end_pass(const at::Tensor& hidden, const Decode& decode,
                               const Prefill& prefill) {
  std::vector<size_t> rows = all_rows(static_cast<size_t>(decode.count()));
  rows.insert(rows.end(), prefill.rows.begin(), prefill.rows.end());
  Choices choices;
  if (has_head()) {
    try {
      with_unit(decoder_.head_unit(), [&] {
        score_prompts(hidden.narrow(0, decode.count(), prefill.count()), prefill, choices);
        const at::Tensor logits =
            layers::logits_of(decoder_.head(), last_hidden(hidden, decode, prefill));
        choose_tokens(logits.to(at::kFloat).cpu().contiguous(), rows, choices);
      });
    } catch (const NotFiniteError&) {
      choices = {.is_finite = false};
    }
  } else {
    messages_->ranks().links()->send_hidden(hidden.contiguous());
  }
  if (messages_) choices = messages_->of_head(choices);
  if (!choices.is_finite) throw_not_finite();
  for (size_t i = 0; i < rows.size(); ++i) {
    rows_[rows[i]].next = choices.tokens[i];
    rows_[rows[i]].logprobs = std::move(choices.logprobs[i]);
  }
  if (messages_ && !messages_->leads()) return;
  for (auto& [prompt, scores] : choices.prompt_scores)
    hooks_.on_prompt_scores(prompt, std::move(scores));
}

/// Of each row's last token.
at::Tensor GenerationBatch::last_hidden(const at::Tensor& hidden, const Decode& decode,
                                        const Prefill& prefill) {
  if (prefill.rows.empty()) return hidden;
  std::vector<int64_t> last;
  for (int64_t row = 0; row < decode.count(); ++row) last.push_back(row);
  for (size_t i = 0; i < prefill.rows.size(); ++i)
    last.push_back(decode.count() + prefill.cu_seqlens[i + 1] - 1);
  return hidden.index_select(0, at::tensor(last).to(device()));
}

/// Makes room for `length` tokens in each row. The cache grows to twice its size, but not beyond
/// what the active rows can come to.
void GenerationBatch::reserve(int64_t length) {
  int64_t longest = 0;
  for (const Row& row : rows_) longest = std::max(longest, longest_of(row.request));
  cache_->reserve({.rows = static_cast<int64_t>(rows_.size()), .length = std::min(length, longest)},
                  {.rows = static_cast<int64_t>(num_rows_), .length = longest});
}

uint64_t GenerationBatch::cache_bytes(size_t more, int64_t length) const {
  for (const Row& row : rows_) length = std::max(length, longest_of(row.request));
  for (const SequenceRequest& request : unread_) length = std::max(length, longest_of(request));
  return cache_->bytes({.rows = static_cast<int64_t>(num_active() + more), .length = length});
}

/// In pieces, because the logits of a long prompt need more memory than the model.
void GenerationBatch::score_prompts(const at::Tensor& hidden, const Prefill& prefill,
                                    Choices& choices) {
  constexpr int64_t kLogits = int64_t{1} << 24;  // of a piece
  const int64_t most = std::max<int64_t>(1, kLogits / decoder_.arch().vocab_size);
  for (size_t i = 0; i < prefill.rows.size(); ++i) {
    const SequenceRequest& request = rows_[prefill.rows[i]].request;
    const bool is_read_again = !rows_[prefill.rows[i]].result.tokens.empty();
    if (!request.scores_prompt || is_read_again) continue;
    const std::vector<int32_t>& tokens = request.prompt.tokens;
    const auto num_scored = static_cast<int64_t>(tokens.size()) - 1;
    std::vector<TokenLogprobs> scores;
    for (int64_t first = 0; first < num_scored; first += most) {
      const int64_t count = std::min(most, num_scored - first);
      const std::vector<int64_t> predicted(tokens.begin() + first + 1,
                                           tokens.begin() + first + 1 + count);
      const at::Tensor logits =
          layers::logits_of(decoder_.head(), hidden.narrow(0, prefill.cu_seqlens[i] + first, count))
              .to(at::kFloat);
      for (TokenLogprobs& score :
           token_logprobs(logits, at::tensor(predicted).to(device()), *request.num_logprobs))
        scores.push_back(std::move(score));
    }
    for (const TokenLogprobs& score : scores)
      if (!std::isfinite(score.logprob)) throw_not_finite();
    choices.prompt_scores.emplace_back(request.prompt.index, std::move(scores));
  }
}

/// Rows whose next token changes the angles of all positions (LongRoPE). They are read again
/// including that token, as in transformers.
std::vector<size_t> GenerationBatch::rows_that_change_angles() const {
  const int64_t limit = decoder_.rope().switches_after();
  std::vector<size_t> switching;
  for (size_t row = 0; limit > 0 && row < rows_.size(); ++row)
    if (rows_[row].length == limit) switching.push_back(row);
  return switching;
}

/// @param logits [n, vocab] fp32 on the host, one for each of `rows`
void GenerationBatch::choose_tokens(const at::Tensor& logits, const std::vector<size_t>& rows,
                                    Choices& choices) {
  choices.tokens.resize(rows.size());
  choices.logprobs.resize(rows.size());
  at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      choices.tokens[i] = choose(rows_[rows[i]], logits[static_cast<int64_t>(i)]);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::optional<size_t>& wanted = rows_[rows[i]].request.num_logprobs;
    if (!wanted) continue;
    const at::Tensor chosen = at::full({1}, int64_t{choices.tokens[i]}, at::kLong);
    choices.logprobs[i] =
        token_logprobs(logits.narrow(0, static_cast<int64_t>(i), 1), chosen, *wanted)[0];
  }
}

/// @return the next token of the row
int32_t GenerationBatch::choose(const Row& row, const at::Tensor& of_last) const {
  const SamplingOptions& options = *row.request.options;
  const bool penalizes = options.repetition_penalty != 1;
  const at::Tensor logits = penalizes ? of_last.clone() : of_last;
  const std::span values(logits.data_ptr<float>(), static_cast<size_t>(logits.numel()));
  if (!all_finite(values)) throw_not_finite();
  const Prompt& prompt = row.request.prompt;
  const std::vector<int32_t>& generated = row.result.tokens;
  if (penalizes) penalize_repetition(values, prompt.tokens, generated, options.repetition_penalty);
  return sample_token(values, options, prompt.stream, static_cast<uint64_t>(generated.size()));
}

/// Records the chosen token; false when the sequence is finished.
bool GenerationBatch::accept(Row& row) {
  const SamplingOptions& options = *row.request.options;
  Generation& result = row.result;
  if (options.max_new_tokens == 0) return false;
  const auto& stops = options.stop_tokens;
  const bool is_stop = std::find(stops.begin(), stops.end(), row.next) != stops.end();
  if (!is_stop) result.tokens.push_back(row.next);
  NewToken token{row.next, is_stop, std::move(row.logprobs)};
  const bool goes_on =
      !hooks_.on_token || hooks_.on_token(row.request.prompt.index, std::move(token));
  if (is_stop || !goes_on) {
    result.stopped = true;
    return false;
  }
  return static_cast<int64_t>(result.tokens.size()) < options.max_new_tokens;
}

/// Records the chosen tokens of these rows, and hands over the answers that are finished.
/// @param rows ascending
void GenerationBatch::accept_and_free(const std::vector<size_t>& rows) {
  std::vector<size_t> finished;
  for (const size_t row : rows)
    if (!accept(rows_[row])) finished.push_back(row);
  for (auto row = finished.rbegin(); row != finished.rend(); ++row) {
    hooks_.on_finished(rows_[*row].request.prompt.index, std::move(rows_[*row].result));
    if (messages_) messages_->removed(*row);
    remove(*row);
  }
}

void GenerationBatch::drop(const std::function<bool(size_t)>& is_dropped) {
  const std::vector<size_t> dropped = drop_rows(is_dropped);
  if (messages_) messages_->dropped(dropped);
}

/// @return the indices of their prompts
std::vector<size_t> GenerationBatch::drop_rows(const std::function<bool(size_t)>& is_dropped) {
  std::vector<size_t> dropped;
  const auto is_noted = [&](const SequenceRequest& request) {
    if (!is_dropped(request.prompt.index)) return false;
    dropped.push_back(request.prompt.index);
    return true;
  };
  for (size_t row = rows_.size(); row-- > 0;)
    if (is_noted(rows_[row].request)) remove(row);
  std::erase_if(unread_, is_noted);
  return dropped;
}

void GenerationBatch::reset() {
  if (messages_) messages_->tell(Next::kReset);
  clear();
}

void GenerationBatch::clear() {
  rows_.clear();
  unread_.clear();
  cache_ = std::make_unique<SequenceCache>(decoder_);
}

/// The last row takes its place.
void GenerationBatch::remove(size_t row) {
  const size_t last = rows_.size() - 1;
  cache_->move_row(static_cast<int64_t>(last), static_cast<int64_t>(row));
  if (row != last) rows_[row] = std::move(rows_[last]);
  rows_.pop_back();
}

}  // namespace sftrun::model
