#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "sftrun/layers/batch_context.h"

/// A pass of generation: some sequences of a batch get their next token (decode), others are read from
/// their start (prefill). Rows of hidden states: first those of decode, then those of prefill.
namespace sftrun::layers {

/// What a layer keeps of the sequences of a batch, one row for each: keys and values, or a state.
class LayerCache {
 public:
  virtual ~LayerCache() = default;
  /// Memory of a token of a row, and of a row whatever its length (a state).
  virtual uint64_t bytes_of_token() const = 0;
  virtual uint64_t bytes_of_row() const { return 0; }
  /// Room for more rows, and for more tokens in each; what is there stays.
  virtual void grow(int64_t rows, int64_t capacity) = 0;
  /// Moves a sequence to another row, whose content is lost.
  virtual void move_row(int64_t from, int64_t to) = 0;
};

/// Which keys the tokens of a decode pass see.
class StepMasks {
 public:
  /// @param lengths tokens of each row, with that of the pass
  StepMasks(std::span<const int64_t> lengths, at::Device device);

  /// Positions [first, first + count) hold all keys that a row sees.
  struct Span {
    int64_t first = 0, count = 0;
    at::Tensor hidden;  ///< [n, 1, 1, count] bool, true: not seen; undefined: all are
  };
  /// @param window number of last tokens that are seen; 0: all
  const Span& of_window(int64_t window);
  std::span<const int64_t> lengths() const { return lengths_; }

 private:
  Span make(int64_t window) const;

  std::vector<int64_t> lengths_;
  at::Tensor on_device_;  // [n, 1, 1]
  std::map<int64_t, Span> spans_;
};

/// The first rows of the caches, each of which gets a token.
struct DecodeRows {
  int64_t count = 0;
  at::Tensor positions;        ///< [count] int64 of the tokens, on the device
  StepMasks* masks = nullptr;  ///< null: count is 0
};

/// Sequences that are read as one packed batch.
struct PrefillRows {
  std::span<const size_t> rows;         ///< of the caches
  std::span<const int32_t> cu_seqlens;  ///< [rows + 1]
  const BatchContext* context = nullptr;
  int64_t count() const { return rows.empty() ? 0 : cu_seqlens.back(); }
};

struct GenerationPass {
  const BatchContext& context;  ///< of all tokens
  DecodeRows decode;
  PrefillRows prefill;
  /// [layers]; null for layers that keep nothing of their own
  std::span<const std::unique_ptr<LayerCache>> caches;
};

}  // namespace sftrun::layers
