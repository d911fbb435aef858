#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sequence_cache.h"
#include "sftrun/model/generation_batch.h"

namespace sftrun::model {

/// A sequence that has a row of the cache.
struct CachedSequence {
  SequenceRequest request;
  Generation result;
  int64_t length = 0;                     ///< tokens in the cache
  int64_t rope_shift = 0;                 ///< M-RoPE: of positions behind images; at most 0
  int32_t next = 0;                       ///< chosen last
  std::optional<TokenLogprobs> logprobs;  ///< of `next`
};

/// The sequences of a batch and their cache. New ones wait until a pass reads their prompts; then each
/// gets a row of the cache. Rows have no gaps: the last one takes the place of one that is removed.
class BatchSequences {
 public:
  /// @param max_size most sequences at the same time
  BatchSequences(Decoder& decoder, size_t max_size);

  size_t size() const { return rows_.size() + waiting_.size(); }
  size_t num_free() const { return max_size_ - size(); }
  size_t num_waiting() const { return waiting_.size(); }
  std::vector<CachedSequence>& rows() { return rows_; }  ///< sequence i is in row i
  const std::vector<CachedSequence>& rows() const { return rows_; }

  void add(SequenceRequest request) { waiting_.push_back(std::move(request)); }
  /// Gives rows to waiting prompts, as many as a pass may read.   @return these rows, ascending
  /// @param one_prompt a pass reads a single prompt
  std::vector<size_t> admit(bool one_prompt);
  void remove(size_t row);
  /// Removes sequences by the indices of their prompts.   @return the indices of those removed
  std::vector<size_t> drop(const std::function<bool(size_t)>& is_dropped);
  /// Removes all, and frees the memory of the cache.
  void clear();

  /// Makes room for `length` tokens in each row. The cache grows to twice its size, but not beyond
  /// what the rows can come to.
  void reserve(int64_t length);
  /// As `GenerationBatch::cache_bytes`.
  uint64_t cache_bytes(size_t more, int64_t length) const;
  std::span<const std::unique_ptr<layers::LayerCache>> caches() const { return cache_.layers(); }

 private:
  Decoder& decoder_;
  size_t max_size_;
  SequenceCache cache_;
  std::vector<CachedSequence> rows_;
  std::deque<SequenceRequest> waiting_;
};

}  // namespace sftrun::model
