#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sftrun/model/decoder.h"

namespace sftrun::model {

/// What the layers keep of the sequences of a batch, one row for each. A row has room for `capacity`
/// tokens; rows and capacity grow as needed, to twice their size. The active rows are the first ones,
/// so that a pass reads them without copying.
class SequenceCache {
 public:
  struct Size {
    int64_t rows = 0, length = 0;  ///< tokens of the longest row
  };

  explicit SequenceCache(Decoder& decoder);

  /// Makes room for what is `needed`, and for more up to `max`, so that it grows seldom.
  void reserve(const Size& needed, const Size& max);
  /// Memory after it has grown to this size: it never becomes smaller.
  uint64_t bytes(const Size& size) const;
  /// Moves a sequence to another row, whose content is lost.
  void move_row(int64_t from, int64_t to);

  std::span<const std::unique_ptr<layers::LayerCache>> layers() const { return layers_; }

 private:
  std::vector<std::unique_ptr<layers::LayerCache>>
      layers_;  // null: it keeps nothing, or another stage has it
  int64_t rows_ = 0, capacity_ = 0;
};

}  // namespace sftrun::model
