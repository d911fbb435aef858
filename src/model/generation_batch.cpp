#include "sftrun/model/generation_batch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kv_cache.h"
#include "sampling.h"
#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/data/example.h"

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
                       "use --dtype fp32; if that does not help, the adapter is broken");
}

std::vector<size_t> all_rows(size_t count) {
  std::vector<size_t> rows;
  for (size_t row = 0; row < count; ++row) rows.push_back(row);
  return rows;
}

}  // namespace

int64_t GenerationBatch::Row::longest() const {
  return static_cast<int64_t>(request.prompt.tokens.size()) + request.options->max_new_tokens;
}

GenerationBatch::GenerationBatch(Decoder& decoder, size_t num_rows, BatchHooks hooks)
    : decoder_(decoder),
      num_rows_(num_rows),
      hooks_(std::move(hooks)),
      cache_(std::make_unique<KvCache>(decoder)),
      bytes_of_token_(cache_->bytes({.rows = 1, .length = 1})) {
  SFTRUN_CHECK(num_rows > 0);
  for (const Layer& layer : decoder_.layers()) has_states_ |= layer.delta_net.defined();
}

GenerationBatch::~GenerationBatch() = default;

/// Several prompts are read in one pass. A gated delta net reads one document.
void GenerationBatch::start(std::vector<SequenceRequest> requests) {
  constexpr size_t kMostTokens = 4096;  // beyond that a pass is no faster per token
  SFTRUN_CHECK(requests.size() <= num_free());
  const at::NoGradGuard no_grad;
  size_t next = 0;
  while (next < requests.size()) {
    std::vector<size_t> together;
    size_t tokens = 0;
    do {
      tokens += requests[next].prompt.tokens.size();
      together.push_back(rows_.size());
      rows_.push_back({.request = std::move(requests[next++])});
    } while (!has_states_ && tokens < kMostTokens && next < requests.size());
    prefill(together);
    accept_and_free(together);
  }
}

/// Fills the rows' caches with their tokens so far, which are read as one packed batch, and chooses
/// their next tokens.
void GenerationBatch::prefill(const std::vector<size_t>& rows) {
  std::vector<std::vector<int32_t>> documents;
  std::vector<int64_t> last;  // token of each document
  int64_t longest = 0;
  for (const size_t row : rows) {
    Row& sequence = rows_[row];
    std::vector<int32_t> tokens = sequence.request.prompt.tokens;
    tokens.insert(tokens.end(), sequence.result.tokens.begin(), sequence.result.tokens.end());
    sequence.length = static_cast<int64_t>(tokens.size());
    longest = std::max(longest, sequence.length);
    last.push_back((last.empty() ? -1 : last.back()) + sequence.length);
    documents.push_back(std::move(tokens));
  }
  constexpr int64_t kFirstTokens = 64;  // of the answers
  reserve(longest + kFirstTokens);
  const data::Batch batch = batch_of(documents);
  PackedBatch packed = prepare_batch(batch, decoder_.rope(), decoder_.batch_target(), {});
  decoder_.prepare_joints();
  at::Tensor hidden = decoder_.embed(packed.tokens);
  decoder_.open_shared_state(packed.context, packed.tokens, hidden);
  for (size_t l = 0; l < decoder_.layers().size(); ++l) {
    Layer& layer = decoder_.layers()[l];
    const at::Tensor mixed =
        layer.delta_net.defined()
            ? layers::delta_net_answer(layer, hidden, packed.context,
                                       cache_->delta_state(l, static_cast<int64_t>(rows[0])))
            : attend_prompts(l, hidden, packed.context, rows, batch.cu_seqlens);
    hidden = layers::after_attention(layer, hidden, mixed, packed.context);
  }
  score_prompts(hidden, rows, batch.cu_seqlens);
  choose_tokens(head(hidden.index_select(0, at::tensor(last).to(device()))), rows);
}

/// Makes room for `length` tokens in each row. The cache grows to twice its size, but not beyond
/// what the active rows can come to.
void GenerationBatch::reserve(int64_t length) {
  int64_t longest = 0;
  for (const Row& row : rows_) longest = std::max(longest, row.longest());
  cache_->reserve({.rows = static_cast<int64_t>(rows_.size()), .length = std::min(length, longest)},
                  {.rows = static_cast<int64_t>(num_rows_), .length = longest});
}

uint64_t GenerationBatch::cache_bytes(size_t more, int64_t length) const {
  for (const Row& row : rows_) length = std::max(length, row.longest());
  return cache_->bytes({.rows = static_cast<int64_t>(rows_.size() + more), .length = length});
}

at::Tensor GenerationBatch::attend_prompts(size_t l, const at::Tensor& hidden,
                                           const layers::BatchContext& context,
                                           const std::vector<size_t>& rows,
                                           const std::vector<int32_t>& cu_seqlens) {
  const Layer& layer = decoder_.layers()[l];
  const auto [q, k, v, gate] = layers::attention_inputs(layer, hidden, context);
  for (size_t i = 0; layer.keys_of < 0 && i < rows.size(); ++i) {
    const int64_t first = cu_seqlens[i], count = cu_seqlens[i + 1] - first;
    cache_->store_prompt(l, static_cast<int64_t>(rows[i]), k.narrow(0, first, count),
                         v.narrow(0, first, count));
  }
  const at::Tensor attended =
      kernels::attention_forward(q, k, v, context, layer.attention, layer.sinks.weight).out;
  return layers::gated_attention(attended, gate);
}

/// In pieces, because the logits of a long prompt need more memory than the model.
void GenerationBatch::score_prompts(const at::Tensor& hidden, const std::vector<size_t>& rows,
                                    const std::vector<int32_t>& cu_seqlens) {
  constexpr int64_t kLogits = int64_t{1} << 24;  // of a piece
  const int64_t most = std::max<int64_t>(1, kLogits / decoder_.arch().vocab_size);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SequenceRequest& request = rows_[rows[i]].request;
    const bool is_read_again = !rows_[rows[i]].result.tokens.empty();
    if (!request.scores_prompt || is_read_again) continue;
    const std::vector<int32_t>& tokens = request.prompt.tokens;
    const auto num_scored = static_cast<int64_t>(tokens.size()) - 1;
    std::vector<TokenLogprobs> scores;
    for (int64_t first = 0; first < num_scored; first += most) {
      const int64_t count = std::min(most, num_scored - first);
      const std::vector<int64_t> predicted(tokens.begin() + first + 1,
                                           tokens.begin() + first + 1 + count);
      const at::Tensor logits =
          layers::logits_of(decoder_.head(), hidden.narrow(0, cu_seqlens[i] + first, count))
              .to(at::kFloat);
      for (TokenLogprobs& score :
           token_logprobs(logits, at::tensor(predicted).to(device()), *request.num_logprobs))
        scores.push_back(std::move(score));
    }
    for (const TokenLogprobs& score : scores)
      if (!std::isfinite(score.logprob)) throw_not_finite();
    hooks_.on_prompt_scores(request.prompt.index, std::move(scores));
  }
}

void GenerationBatch::step() {
  SFTRUN_CHECK(!rows_.empty());
  const at::NoGradGuard no_grad;
  const std::vector<size_t> switching = rows_that_change_angles();
  std::vector<int64_t> positions, lengths, fed;
  for (const Row& row : rows_) {
    positions.push_back(row.length);
    lengths.push_back(row.length + 1);
    fed.push_back(row.next);
  }
  reserve(*std::max_element(lengths.begin(), lengths.end()));
  decoder_.prepare_joints(layers::DequantPrefetcher::Pass::kDecoding);
  layers::BatchContext context;
  decoder_.rope().fill_positions(context, positions, device());
  const at::Tensor tokens = at::tensor(fed).to(device()),
                   places = at::tensor(positions).to(device());
  StepMasks masks(lengths, device());
  at::Tensor hidden = decoder_.embed(tokens);
  decoder_.open_shared_state(context, tokens, hidden);
  for (size_t l = 0; l < decoder_.layers().size(); ++l) {
    const Layer& layer = decoder_.layers()[l];
    const at::Tensor mixed = layer.delta_net.defined()
                                 ? delta_net_tokens(l, hidden, context)
                                 : attend_tokens(l, hidden, context, places, masks);
    hidden = layers::after_attention(layer, hidden, mixed, context);
  }
  for (Row& row : rows_) ++row.length;
  const std::vector<size_t> all = all_rows(rows_.size());
  choose_tokens(head(hidden), all);
  if (!switching.empty()) prefill(switching);
  accept_and_free(all);
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

at::Tensor GenerationBatch::attend_tokens(size_t l, const at::Tensor& hidden,
                                          const layers::BatchContext& context,
                                          const at::Tensor& positions, StepMasks& masks) {
  const Layer& layer = decoder_.layers()[l];
  const auto [q, k, v, gate] = layers::attention_inputs(layer, hidden, context);
  const bool borrows = layer.keys_of >= 0;
  const size_t source = borrows ? static_cast<size_t>(layer.keys_of) : l;
  if (!borrows) cache_->store_tokens(l, positions, k, v);
  const at::Tensor attended = attend_cached(layer, q, cache_->keys(source), cache_->values(source),
                                            masks.of_window(layer.attention.window));
  return layers::gated_attention(attended, gate);
}

at::Tensor GenerationBatch::delta_net_tokens(size_t l, const at::Tensor& hidden,
                                             const layers::BatchContext& context) {
  std::vector<at::Tensor> tokens;
  for (int64_t row = 0; row < hidden.size(0); ++row) {
    tokens.push_back(layers::delta_net_next(decoder_.layers()[l], hidden.narrow(0, row, 1), context,
                                            cache_->delta_state(l, row)));
  }
  return at::cat(tokens);
}

/// @return [n, vocab] fp32 on the host
at::Tensor GenerationBatch::head(const at::Tensor& hidden) {
  return layers::logits_of(decoder_.head(), hidden).to(at::kFloat).cpu().contiguous();
}

/// @param logits [n, vocab], one for each of `rows`
void GenerationBatch::choose_tokens(const at::Tensor& logits, const std::vector<size_t>& rows) {
  at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (int64_t i = begin; i < end; ++i) choose(rows_[rows[static_cast<size_t>(i)]], logits[i]);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows_[rows[i]];
    if (!row.request.num_logprobs) continue;
    const at::Tensor chosen = at::full({1}, int64_t{row.next}, at::kLong);
    row.logprobs = token_logprobs(logits.narrow(0, static_cast<int64_t>(i), 1), chosen,
                                  *row.request.num_logprobs)[0];
  }
}

void GenerationBatch::choose(Row& row, const at::Tensor& of_last) const {
  const SamplingOptions& options = *row.request.options;
  const bool penalizes = options.repetition_penalty != 1;
  const at::Tensor logits = penalizes ? of_last.clone() : of_last;
  const std::span values(logits.data_ptr<float>(), static_cast<size_t>(logits.numel()));
  if (!all_finite(values)) throw_not_finite();
  const Prompt& prompt = row.request.prompt;
  const std::vector<int32_t>& generated = row.result.tokens;
  if (penalizes) penalize_repetition(values, prompt.tokens, generated, options.repetition_penalty);
  row.next = sample_token(values, options, prompt.stream, static_cast<uint64_t>(generated.size()));
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
    remove(*row);
  }
}

void GenerationBatch::drop(const std::function<bool(size_t)>& is_dropped) {
  for (size_t row = rows_.size(); row-- > 0;)
    if (is_dropped(rows_[row].request.prompt.index)) remove(row);
}

void GenerationBatch::reset() {
  rows_.clear();
  cache_ = std::make_unique<KvCache>(decoder_);
}

/// The last row takes its place.
void GenerationBatch::remove(size_t row) {
  const size_t last = rows_.size() - 1;
  cache_->move_row(static_cast<int64_t>(last), static_cast<int64_t>(row));
  if (row != last) rows_[row] = std::move(rows_[last]);
  rows_.pop_back();
}

}  // namespace sftrun::model
