#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sftrun/layers/copy_ranks.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/generate.h"
#include "sftrun/model/token_logprobs.h"

namespace sftrun::model {

class BatchSequences;
class GenerationForward;
class GenerationMessages;
struct CachedSequence;
struct Choices;
struct GenerationInputs;

/// A prompt, and how it is answered.
struct SequenceRequest {
  Prompt prompt;
  std::shared_ptr<const SamplingOptions> options;  ///< not null
  /// Report the log-probability of each token, and this many likeliest tokens; nullopt: none.
  std::optional<size_t> num_logprobs = {};
  bool scores_prompt = false;  ///< also for the tokens of the prompt; needs `num_logprobs`
};

struct NewToken {
  int32_t token = 0;
  bool is_stop = false;  ///< a stop token: the sequence ends, and it is not among its tokens
  std::optional<TokenLogprobs> logprobs;  ///< if they were asked for
};

/// The first argument is the index of the prompt. Each but `on_finished` may be empty.
struct BatchHooks {
  /// False ends the sequence with this token; for a stop token the result is ignored.
  std::function<bool(size_t, NewToken&&)> on_token = {};
  std::function<void(size_t, Generation&&)> on_finished;
  /// Of the prompt's tokens from the second on; before the first `on_token`.
  std::function<void(size_t, std::vector<TokenLogprobs>&&)> on_prompt_scores = {};
};

/// Sequences that are generated together. They come and go between steps (continuous batching), and
/// each has its own options. New prompts are read in the pass that generates the others' next tokens,
/// so that weights are read from memory once for both. Rows that are read are the first of the cache.
///
/// Where several ranks have one copy of the model together, each has such an object with the same
/// arguments: the lead's caller adds sequences and steps, the others call `follow`. The rank with the
/// head chooses the tokens; hooks are called on the lead.
///
/// A model with a head of scores ends each sequence with the step that reads its prompt: `on_finished`
/// gets the scores of the token that transformers scores (`scored_part`).
class GenerationBatch {
 public:
  /// @param num_rows most sequences at the same time, above 0   @param decoder must outlive this object
  /// @param ranks that have the decoder's model together; null: this one alone has all of it
  /// @param number of the batch where these ranks have several
  GenerationBatch(Decoder& decoder, size_t num_rows, BatchHooks hooks,
                  layers::CopyRanks* ranks = nullptr, size_t number = 0);
  ~GenerationBatch();
  GenerationBatch(const GenerationBatch&) = delete;
  GenerationBatch& operator=(const GenerationBatch&) = delete;

  size_t num_active() const;
  size_t num_free() const;

  /// Adds sequences, whose prompts the next steps read.   @param requests at most `num_free`
  void add(std::vector<SequenceRequest> requests);
  /// Generates one token of each active sequence; the first one where its prompt is read now.
  /// @pre one is active   @throws NotFiniteError
  void step();
  /// Drops active sequences without calling a hook.
  void drop(const std::function<bool(size_t)>& is_dropped);
  /// Drops all sequences and the memory of the cache.
  void reset();
  /// Drops all sequences. Then makes passes for the ranks that gather this one's shards until these
  /// finish, too, and ends the `follow` of the other ranks of the copy.
  void finish();
  /// While there is nothing to do the other ranks wait without a collective, from `rest` to `wake`.
  void rest();
  void wake();
  /// Makes the passes of the lead until it finishes one of the batches.   @pre another rank leads
  /// @param batches by their numbers   @param before_step called before each step; may be empty
  static void follow(const std::vector<GenerationBatch*>& batches,
                     const std::function<void()>& before_step = {});

  /// Bytes of the cache when it holds `more` sequences beside the active ones, and the longest has
  /// `length` tokens with its answer.
  uint64_t cache_bytes(size_t more, int64_t length) const;
  /// Bytes of the cache of one sequence of `length` tokens. Thread-safe.
  uint64_t bytes_of_sequence(int64_t length) const {
    return static_cast<uint64_t>(length) * bytes_of_token_ + bytes_of_state_;
  }

 private:
  void follow_step();
  int64_t make_passes();
  int64_t num_passes(size_t num_switching) const;
  void run(size_t num_decoded, const std::vector<size_t>& prefill_rows);
  Choices choices_of(const at::Tensor& hidden, const GenerationInputs& inputs);
  std::vector<size_t> rows_that_change_angles() const;
  bool accept(CachedSequence& row);

  Decoder& decoder_;
  BatchHooks hooks_;
  std::unique_ptr<BatchSequences> sequences_;
  const uint64_t bytes_of_state_, bytes_of_token_;  // of one sequence
  const bool has_states_;
  const bool has_scores_;  // a head of scores
  std::unique_ptr<GenerationForward> forward_;
  std::unique_ptr<GenerationMessages> messages_;  // null: this rank has the whole model
};

}  // namespace sftrun::model
