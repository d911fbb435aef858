#include "sftrun/model/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "sampling.h"
#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/data/example.h"

namespace sftrun::model {
namespace {

/// Key/value cache of one sequence in one layer, [kv_heads, capacity, head_dim], or the state of
/// its gated delta net.
struct LayerCache {
  at::Tensor keys, values;
  layers::DeltaState state = {};
};

struct Sequence {
  size_t index = 0;  // of its prompt
  uint64_t stream = 0;
  int64_t length = 0;  // tokens in the cache
  int32_t next = 0;    // token to feed next
  std::vector<LayerCache> layers;
};

class Generator {
 public:
  Generator(Decoder& decoder, const SamplingOptions& options, const OnToken& on_token)
      : decoder_(decoder), options_(options), on_token_(on_token) {}

  std::vector<Generation> run(const std::vector<std::vector<int32_t>>& prompts,
                              const std::vector<uint64_t>& streams) {
    results_.resize(prompts.size());
    prompts_ = &prompts;
    std::vector<Sequence> active;
    for (size_t i = 0; i < prompts.size(); ++i) {
      Sequence sequence = prefill(prompts[i], i, streams[i]);
      if (accept(sequence)) active.push_back(std::move(sequence));
    }
    while (!active.empty()) {
      std::vector<Sequence> read_again = take_switching(active);
      if (!active.empty()) {
        const at::Tensor logits = step(active);
        for (size_t i = 0; i < active.size(); ++i)
          choose(active[i], logits[static_cast<int64_t>(i)]);
      }
      std::vector<Sequence> still;
      for (std::vector<Sequence>* sequences : {&active, &read_again}) {
        for (Sequence& sequence : *sequences) {
          if (accept(sequence)) still.push_back(std::move(sequence));
        }
      }
      active = std::move(still);
    }
    return std::move(results_);
  }

 private:
  /// Removes the sequences whose next token changes the angles of all positions (LongRoPE) from
  /// `active` and prefills them again including that token, as transformers does.
  std::vector<Sequence> take_switching(std::vector<Sequence>& active) {
    const int64_t limit = decoder_.rope().switches_after();
    std::vector<Sequence> switching, others;
    for (Sequence& sequence : active) {
      if (limit == 0 || sequence.length != limit) {
        others.push_back(std::move(sequence));
        continue;
      }
      std::vector<int32_t> tokens = (*prompts_)[sequence.index];
      const std::vector<int32_t>& generated = results_[sequence.index].tokens;
      tokens.insert(tokens.end(), generated.begin(), generated.end());
      switching.push_back(prefill(tokens, sequence.index, sequence.stream));
    }
    active = std::move(others);
    return switching;
  }

  /// Runs the prompt as a packed batch and fills the key/value cache.
  Sequence prefill(const std::vector<int32_t>& prompt, size_t index, uint64_t stream) {
    const auto length = static_cast<int64_t>(prompt.size());
    SFTRUN_CHECK(length > 0);
    data::Batch batch;
    batch.tokens = prompt;
    batch.labels.assign(prompt.size(), data::kIgnoreIndex);
    for (int32_t i = 0; i < length; ++i) batch.position_ids.push_back(i);
    batch.cu_seqlens = {0, static_cast<int32_t>(length)};
    batch.document_keys = {0};
    batch.max_seqlen = static_cast<int32_t>(length);
    PackedBatch packed = prepare_batch(batch, decoder_.rope(), decoder_.batch_target(), {});

    Sequence sequence{index, stream, length, 0, {}};
    decoder_.prepare_joints();
    at::Tensor hidden = decoder_.embed(packed.tokens);
    decoder_.open_shared_state(packed.context, packed.tokens, hidden);
    for (Layer& layer : decoder_.layers()) {
      LayerCache cache;
      const at::Tensor mixed =
          layer.delta_net.defined()
              ? layers::delta_net_answer(layer, hidden, packed.context, cache.state)
              : attend_prompt(layer, hidden, packed.context, cache);
      hidden = layers::after_attention(layer, hidden, mixed, packed.context);
      sequence.layers.push_back(std::move(cache));
    }
    choose(sequence, head(hidden.narrow(0, length - 1, 1))[0]);
    return sequence;
  }

  /// Decodes one token of each sequence: matrix products are batched, attention runs per sequence.
  /// @return logits [n, vocab]
  at::Tensor step(std::vector<Sequence>& active) {
    std::vector<int64_t> positions;
    at::Tensor tokens = at::empty({static_cast<int64_t>(active.size())}, at::kLong);
    for (size_t i = 0; i < active.size(); ++i) {
      positions.push_back(active[i].length);
      tokens.data_ptr<int64_t>()[i] = active[i].next;
    }
    decoder_.prepare_joints(layers::DequantPrefetcher::Pass::kDecoding);
    layers::BatchContext context;
    decoder_.rope().fill_positions(context, positions, device());
    tokens = tokens.to(device());
    at::Tensor hidden = decoder_.embed(tokens);
    decoder_.open_shared_state(context, tokens, hidden);
    for (size_t l = 0; l < decoder_.layers().size(); ++l) {
      Layer& layer = decoder_.layers()[l];
      const at::Tensor mixed = layer.delta_net.defined()
                                   ? delta_net_tokens(layer, hidden, context, active, l)
                                   : attend_tokens(layer, hidden, context, active, l);
      hidden = layers::after_attention(layer, hidden, mixed, context);
    }
    for (Sequence& sequence : active) ++sequence.length;
    return head(hidden);
  }

  at::Tensor attend_prompt(const Layer& layer, const at::Tensor& hidden,
                           const layers::BatchContext& context, LayerCache& cache) const {
    const auto [q, k, v, gate] = layers::attention_inputs(layer, hidden, context);
    if (layer.keys_of < 0) {
      cache.keys = reserve(layer.attention, hidden.size(0));
      cache.values = reserve(layer.attention, hidden.size(0));
      store(cache, 0, k, v);
    }
    const at::Tensor attended =
        kernels::attention_forward(q, k, v, context, layer.attention, layer.sinks.weight).out;
    return layers::gated_attention(attended, gate);
  }

  at::Tensor attend_tokens(const Layer& layer, const at::Tensor& hidden,
                           const layers::BatchContext& context, std::vector<Sequence>& active,
                           size_t l) const {
    const auto [q, k, v, gate] = layers::attention_inputs(layer, hidden, context);
    at::Tensor attended = at::empty_like(q);
    for (size_t i = 0; i < active.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      const bool borrows = layer.keys_of >= 0;
      LayerCache& cache = active[i].layers[borrows ? static_cast<size_t>(layer.keys_of) : l];
      if (!borrows) store(cache, active[i].length, k.narrow(0, row, 1), v.narrow(0, row, 1));
      attended.narrow(0, row, 1).copy_(
          attend(layer, q.narrow(0, row, 1), cache, active[i].length + 1));
    }
    return layers::gated_attention(attended, gate);
  }

  static at::Tensor delta_net_tokens(const Layer& layer, const at::Tensor& hidden,
                                     const layers::BatchContext& context,
                                     std::vector<Sequence>& active, size_t l) {
    std::vector<at::Tensor> rows;
    for (size_t i = 0; i < active.size(); ++i) {
      rows.push_back(layers::delta_net_next(layer, hidden.narrow(0, static_cast<int64_t>(i), 1),
                                            context, active[i].layers[l].state));
    }
    return at::cat(rows);
  }

  at::Tensor head(const at::Tensor& hidden) {
    return layers::logits_of(decoder_.head(), hidden).to(at::kFloat).cpu().contiguous();
  }

  at::Tensor reserve(const kernels::AttentionShape& shape, int64_t length) const {
    const int64_t capacity = length + std::min<int64_t>(options_.max_new_tokens, 64);
    return at::empty({shape.num_kv_heads, capacity, shape.head_dim},
                     at::TensorOptions().dtype(decoder_.options().dtype).device(device()));
  }

  /// k, v [n, kv_heads * head_dim] at cache positions [first, first + n).
  void store(LayerCache& cache, int64_t first, const at::Tensor& k, const at::Tensor& v) const {
    const int64_t count = k.size(0);
    const auto write = [&](at::Tensor& to, const at::Tensor& from) {
      if (first + count > to.size(1)) {  // double the capacity
        at::Tensor larger = at::empty({to.size(0), 2 * to.size(1), to.size(2)}, to.options());
        larger.narrow(1, 0, first).copy_(to.narrow(1, 0, first));
        to = larger;
      }
      to.narrow(1, first, count).copy_(from.view({count, to.size(0), to.size(2)}).transpose(0, 1));
    };
    write(cache.keys, k);
    write(cache.values, v);
  }

  /// softmax(q k^T * scale) v of one token over the visible keys: q [1, heads * head_dim].
  at::Tensor attend(const Layer& layer, const at::Tensor& q, const LayerCache& cache,
                    int64_t length) const {
    const kernels::AttentionShape& shape = layer.attention;
    const int64_t group = shape.num_heads / shape.num_kv_heads;
    const int64_t seen = shape.window > 0 ? std::min(shape.window, length) : length;
    const auto visible = [&](const at::Tensor& x) { return x.narrow(1, length - seen, seen); };
    const at::Tensor queries = q.view({shape.num_kv_heads, group, shape.head_dim});
    at::Tensor scores =
        at::matmul(queries, visible(cache.keys).transpose(1, 2)).to(at::kFloat) * shape.scale;
    if (shape.softcap > 0) scores = scores.div_(shape.softcap).tanh_().mul_(shape.softcap);
    if (layer.sinks.defined()) {
      const at::Tensor sinks = layer.sinks.weight.to(at::kFloat);
      scores = at::cat({scores, sinks.view({shape.num_kv_heads, group, 1})}, -1);
    }
    const at::Tensor weights = at::softmax(scores, -1).narrow(-1, 0, seen).to(q.scalar_type());
    return at::matmul(weights, visible(cache.values)).reshape({1, -1});
  }

  void choose(Sequence& sequence, const at::Tensor& of_last) const {
    const bool penalizes = options_.repetition_penalty != 1;
    const at::Tensor logits = penalizes ? of_last.clone() : of_last;
    const std::span values(logits.data_ptr<float>(), static_cast<size_t>(logits.numel()));
    if (!all_finite(values)) {
      throw NotFiniteError("the logits of the next token are NaN or infinite", {},
                           "use --dtype fp32; if that does not help, the adapter is broken");
    }
    const std::vector<int32_t>& generated = results_[sequence.index].tokens;
    if (penalizes) {
      penalize_repetition(values, (*prompts_)[sequence.index], generated,
                          options_.repetition_penalty);
    }
    sequence.next =
        sample_token(values, options_, sequence.stream, static_cast<uint64_t>(generated.size()));
  }

  /// Records the chosen token; false when the sequence is finished.
  bool accept(Sequence& sequence) {
    Generation& result = results_[sequence.index];
    const auto& stops = options_.stop_tokens;
    if (std::find(stops.begin(), stops.end(), sequence.next) != stops.end()) {
      result.stopped = true;
      return false;
    }
    result.tokens.push_back(sequence.next);
    if (on_token_ && !on_token_(sequence.index, sequence.next)) {
      result.stopped = true;
      return false;
    }
    return static_cast<int64_t>(result.tokens.size()) < options_.max_new_tokens;
  }

  at::Device device() const { return decoder_.options().device; }

  Decoder& decoder_;
  const SamplingOptions& options_;
  const OnToken& on_token_;
  const std::vector<std::vector<int32_t>>* prompts_ = nullptr;
  std::vector<Generation> results_;
};

}  // namespace

std::vector<Generation> generate(Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                                 const std::vector<uint64_t>& streams,
                                 const SamplingOptions& options, const OnToken& on_token) {
  SFTRUN_CHECK_EQ(prompts.size(), streams.size());
  const at::NoGradGuard no_grad;
  return Generator(decoder, options, on_token).run(prompts, streams);
}

}  // namespace sftrun::model
