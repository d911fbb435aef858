#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <vector>

#include "sftrun/model/decoder.h"

namespace sftrun::model {

/// Keys and values of the sequences of a batch, one row for each, and the states of their gated
/// delta nets. A row has room for `capacity` tokens; rows and capacity grow as needed, to twice
/// their size. The active rows are the first ones, so that a step reads them without copying.
class KvCache {
 public:
  struct Size {
    int64_t rows = 0, length = 0;  ///< tokens of the longest row
  };

  explicit KvCache(Decoder& decoder);

  /// Makes room for what is `needed`, and for more up to `most`, so that it grows seldom.
  void reserve(const Size& needed, const Size& most);
  /// Memory after it has grown to this size: it never becomes smaller.
  uint64_t bytes(const Size& size) const;

  /// Writes the tokens of a sequence from its first on.   @param k, v [T, kv_heads * head_dim]
  void store_prompt(size_t layer, int64_t row, const at::Tensor& k, const at::Tensor& v);
  /// Writes one token of each of the first n rows.   @param k, v [n, kv_heads * head_dim]
  /// @param positions [n] int64 of these tokens, on the device
  void store_tokens(size_t layer, const at::Tensor& positions, const at::Tensor& k,
                    const at::Tensor& v);
  layers::DeltaState& delta_state(size_t layer, int64_t row);

  /// Moves a sequence to another row, whose content is lost.
  void move_row(int64_t from, int64_t to);

  const at::Tensor& keys(size_t layer) const { return layers_[layer].keys; }
  const at::Tensor& values(size_t layer) const { return layers_[layer].values; }

 private:
  struct LayerCache {
    at::Tensor keys, values;  // [rows, kv_heads, capacity, head_dim]; undefined: none of its own
    std::vector<layers::DeltaState> states;  // [rows] of a gated delta net; else empty
  };

  std::vector<LayerCache> layers_;
  int64_t rows_ = 0, capacity_ = 0;
};

/// Which keys the tokens of a step see.
class StepMasks {
 public:
  /// @param lengths tokens of each row, with that of the step
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

/// softmax(q k^T * scale) v of one token of each row over the keys that it sees.
/// @param q [n, heads * head_dim]   @param keys, values [rows, kv_heads, capacity, head_dim] with
/// the step's own   @return [n, heads * head_dim]
at::Tensor attend_cached(const layers::Layer& layer, const at::Tensor& q, const at::Tensor& keys,
                         const at::Tensor& values, StepMasks& masks);

}  // namespace sftrun::model
