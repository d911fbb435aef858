#include "sftrun/model/generate.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "kv_cache.h"
#include "sampling.h"
#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/data/example.h"

namespace sftrun::model {
namespace {

/// A row of the batch.
struct Sequence {
  Prompt prompt;
  Generation result;
  int64_t length = 0;  // tokens in the cache
  int32_t next = 0;    // token to feed next
};

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

class Generator {
 public:
  Generator(Decoder& decoder, const SamplingOptions& options, size_t batch_size,
            const GenerationHooks& hooks)
      : decoder_(decoder),
        options_(options),
        batch_size_(batch_size),
        hooks_(hooks),
        cache_(decoder) {
    for (const Layer& layer : decoder_.layers()) has_states_ |= layer.delta_net.defined();
  }

  void run() {
    fill_rows();
    while (!rows_.empty()) {
      if (hooks_.before_step && !hooks_.before_step(rows_.size())) return;
      step();
      std::vector<size_t> finished;
      for (size_t row = 0; row < rows_.size(); ++row)
        if (!accept(rows_[row])) finished.push_back(row);
      free_rows(finished);
      fill_rows();
    }
  }

 private:
  /// Gives free rows to the next prompts, until all are taken or no prompt is left.
  void fill_rows() {
    while (!is_exhausted_ && rows_.size() < batch_size_) {
      const size_t first = rows_.size();
      take_prompts();
      if (rows_.size() == first) return;
      std::vector<size_t> read, finished;
      for (size_t row = first; row < rows_.size(); ++row) read.push_back(row);
      prefill(read);
      for (const size_t row : read)
        if (!accept(rows_[row])) finished.push_back(row);
      free_rows(finished);
    }
  }

  /// Prompts that are read in one pass. A gated delta net reads one document.
  void take_prompts() {
    constexpr size_t kMostTokens = 4096;  // beyond that a pass is no faster per token
    size_t tokens = 0;
    do {
      std::optional<Prompt> prompt = hooks_.next_prompt();
      is_exhausted_ = !prompt;
      if (is_exhausted_) return;
      tokens += prompt->tokens.size();
      rows_.push_back({.prompt = std::move(*prompt)});
    } while (!has_states_ && tokens < kMostTokens && rows_.size() < batch_size_);
  }

  /// Fills the rows' caches with their tokens so far, which are read as one packed batch, and
  /// chooses their next tokens.
  void prefill(const std::vector<size_t>& rows) {
    std::vector<std::vector<int32_t>> documents;
    std::vector<int64_t> last;  // token of each document
    for (const size_t row : rows) {
      Sequence& sequence = rows_[row];
      std::vector<int32_t> tokens = sequence.prompt.tokens;
      tokens.insert(tokens.end(), sequence.result.tokens.begin(), sequence.result.tokens.end());
      sequence.length = static_cast<int64_t>(tokens.size());
      last.push_back((last.empty() ? -1 : last.back()) + sequence.length);
      documents.push_back(std::move(tokens));
    }
    reserve(rows);
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
                                         cache_.delta_state(l, static_cast<int64_t>(rows[0])))
              : attend_prompts(l, hidden, packed.context, rows, batch.cu_seqlens);
      hidden = layers::after_attention(layer, hidden, mixed, packed.context);
    }
    const at::Tensor logits = head(hidden.index_select(0, at::tensor(last).to(device())));
    for (size_t i = 0; i < rows.size(); ++i)
      choose(rows_[rows[i]], logits[static_cast<int64_t>(i)]);
  }

  /// Makes room in the cache, for the first tokens of the answers also.
  void reserve(const std::vector<size_t>& rows) {
    constexpr int64_t kFirstTokens = 64;
    int64_t longest = 0;
    for (const size_t row : rows) longest = std::max(longest, rows_[row].length);
    cache_.reserve(static_cast<int64_t>(rows_.size()),
                   longest + std::min(options_.max_new_tokens, kFirstTokens));
  }

  at::Tensor attend_prompts(size_t l, const at::Tensor& hidden, const layers::BatchContext& context,
                            const std::vector<size_t>& rows,
                            const std::vector<int32_t>& cu_seqlens) {
    const Layer& layer = decoder_.layers()[l];
    const auto [q, k, v, gate] = layers::attention_inputs(layer, hidden, context);
    for (size_t i = 0; layer.keys_of < 0 && i < rows.size(); ++i) {
      const int64_t first = cu_seqlens[i], count = cu_seqlens[i + 1] - first;
      cache_.store_prompt(l, static_cast<int64_t>(rows[i]), k.narrow(0, first, count),
                          v.narrow(0, first, count));
    }
    const at::Tensor attended =
        kernels::attention_forward(q, k, v, context, layer.attention, layer.sinks.weight).out;
    return layers::gated_attention(attended, gate);
  }

  /// Decodes one token of each row.
  void step() {
    const std::vector<size_t> switching = switching_rows();
    const auto n = static_cast<int64_t>(rows_.size());
    std::vector<int64_t> positions, lengths, fed;
    for (const Sequence& sequence : rows_) {
      positions.push_back(sequence.length);
      lengths.push_back(sequence.length + 1);
      fed.push_back(sequence.next);
    }
    cache_.reserve(n, *std::max_element(lengths.begin(), lengths.end()));
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
    for (Sequence& sequence : rows_) ++sequence.length;
    choose_all(head(hidden));
    if (!switching.empty()) prefill(switching);
  }

  /// Rows whose next token changes the angles of all positions (LongRoPE). They are read again
  /// including that token, as in transformers.
  std::vector<size_t> switching_rows() const {
    const int64_t limit = decoder_.rope().switches_after();
    std::vector<size_t> switching;
    for (size_t row = 0; limit > 0 && row < rows_.size(); ++row)
      if (rows_[row].length == limit) switching.push_back(row);
    return switching;
  }

  at::Tensor attend_tokens(size_t l, const at::Tensor& hidden, const layers::BatchContext& context,
                           const at::Tensor& positions, StepMasks& masks) {
    const Layer& layer = decoder_.layers()[l];
    const auto [q, k, v, gate] = layers::attention_inputs(layer, hidden, context);
    const bool borrows = layer.keys_of >= 0;
    const size_t source = borrows ? static_cast<size_t>(layer.keys_of) : l;
    if (!borrows) cache_.store_tokens(l, positions, k, v);
    const at::Tensor attended = attend_cached(layer, q, cache_.keys(source), cache_.values(source),
                                              masks.of_window(layer.attention.window));
    return layers::gated_attention(attended, gate);
  }

  at::Tensor delta_net_tokens(size_t l, const at::Tensor& hidden,
                              const layers::BatchContext& context) {
    std::vector<at::Tensor> tokens;
    for (int64_t row = 0; row < hidden.size(0); ++row) {
      tokens.push_back(layers::delta_net_next(decoder_.layers()[l], hidden.narrow(0, row, 1),
                                              context, cache_.delta_state(l, row)));
    }
    return at::cat(tokens);
  }

  /// @return [n, vocab] fp32 on the host
  at::Tensor head(const at::Tensor& hidden) {
    return layers::logits_of(decoder_.head(), hidden).to(at::kFloat).cpu().contiguous();
  }

  void choose_all(const at::Tensor& logits) {
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      const at::NoGradGuard no_grad;
      for (int64_t row = begin; row < end; ++row)
        choose(rows_[static_cast<size_t>(row)], logits[row]);
    });
  }

  void choose(Sequence& sequence, const at::Tensor& of_last) const {
    const bool penalizes = options_.repetition_penalty != 1;
    const at::Tensor logits = penalizes ? of_last.clone() : of_last;
    const std::span values(logits.data_ptr<float>(), static_cast<size_t>(logits.numel()));
    if (!all_finite(values)) {
      throw NotFiniteError("the logits of the next token are NaN or infinite", {},
                           "use --dtype fp32; if that does not help, the adapter is broken");
    }
    const std::vector<int32_t>& generated = sequence.result.tokens;
    if (penalizes) {
      penalize_repetition(values, sequence.prompt.tokens, generated, options_.repetition_penalty);
    }
    sequence.next = sample_token(values, options_, sequence.prompt.stream,
                                 static_cast<uint64_t>(generated.size()));
  }

  /// Records the chosen token; false when the sequence is finished.
  bool accept(Sequence& sequence) {
    Generation& result = sequence.result;
    const auto& stops = options_.stop_tokens;
    if (std::find(stops.begin(), stops.end(), sequence.next) != stops.end()) {
      result.stopped = true;
      return false;
    }
    result.tokens.push_back(sequence.next);
    if (hooks_.on_token && !hooks_.on_token(sequence.prompt.index, sequence.next)) {
      result.stopped = true;
      return false;
    }
    return static_cast<int64_t>(result.tokens.size()) < options_.max_new_tokens;
  }

  /// Hands the answers of finished rows over. The last rows take their places.
  /// @param finished ascending
  void free_rows(const std::vector<size_t>& finished) {
    for (auto row = finished.rbegin(); row != finished.rend(); ++row) {
      Sequence& sequence = rows_[*row];
      hooks_.on_finished(sequence.prompt.index, std::move(sequence.result));
      const size_t last = rows_.size() - 1;
      cache_.move_row(static_cast<int64_t>(last), static_cast<int64_t>(*row));
      if (*row != last) sequence = std::move(rows_[last]);
      rows_.pop_back();
    }
  }

  at::Device device() const { return decoder_.options().device; }

  Decoder& decoder_;
  const SamplingOptions& options_;
  size_t batch_size_;
  const GenerationHooks& hooks_;
  KvCache cache_;
  std::vector<Sequence> rows_;  // row i of the cache
  bool is_exhausted_ = false, has_states_ = false;
};

}  // namespace

void generate(Decoder& decoder, const SamplingOptions& options, size_t batch_size,
              const GenerationHooks& hooks) {
  SFTRUN_CHECK(batch_size > 0);
  const at::NoGradGuard no_grad;
  Generator(decoder, options, batch_size, hooks).run();
}

std::vector<Generation> generate(Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                                 const std::vector<uint64_t>& streams,
                                 const SamplingOptions& options, const OnToken& on_token) {
  SFTRUN_CHECK_EQ(prompts.size(), streams.size());
  if (prompts.empty()) return {};
  std::vector<Generation> results(prompts.size());
  size_t taken = 0;
  generate(decoder, options, prompts.size(),
           {.next_prompt = [&]() -> std::optional<Prompt> {
              if (taken == prompts.size()) return std::nullopt;
              const size_t index = taken++;
              return Prompt{index, prompts[index], streams[index]};
            },
            .on_finished = [&](size_t index,
                               Generation&& result) { results[index] = std::move(result); },
            .on_token = on_token});
  return results;
}

}  // namespace sftrun::model
