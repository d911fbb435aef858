#include "sequence_cache.h"

#include <algorithm>

namespace sftrun::model {

SequenceCache::SequenceCache(Decoder& decoder) {
  const auto options =
      at::TensorOptions().dtype(decoder.options().dtype).device(decoder.options().device);
  const layers::UnitRange held = decoder.held_units();
  for (const Layer& layer : decoder.layers())
    layers_.push_back(held.contains(layer.unit) ? layer.mixer->make_cache(options) : nullptr);
}

namespace {

/// Twice the size, but not above `max`, if `needed` is more than the present size.
int64_t grown(int64_t now, int64_t needed, int64_t max) {
  return needed <= now ? now : std::max(needed, std::min(2 * now, max));
}

}  // namespace

uint64_t SequenceCache::bytes(const Size& size) const {
  const auto rows = static_cast<uint64_t>(std::max(size.rows, rows_)),
             length = static_cast<uint64_t>(std::max(size.length, capacity_));
  uint64_t of_row = 0;
  for (const auto& layer : layers_)
    if (layer) of_row += length * layer->bytes_of_token() + layer->bytes_of_row();
  return rows * of_row;
}

void SequenceCache::reserve(const Size& needed, const Size& max) {
  const int64_t old_rows = rows_, old_capacity = capacity_;
  rows_ = grown(rows_, needed.rows, max.rows);
  capacity_ = grown(capacity_, needed.length, max.length);
  if (rows_ == old_rows && capacity_ == old_capacity) return;
  for (const auto& layer : layers_)
    if (layer) layer->grow(rows_, capacity_);
}

void SequenceCache::move_row(int64_t from, int64_t to) {
  if (from == to) return;
  for (const auto& layer : layers_)
    if (layer) layer->move_row(from, to);
}

}  // namespace sftrun::model
