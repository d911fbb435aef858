#include "tiled_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "../parallel.h"
#include "product_layouts.h"
#include "sftrun/core/error.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kTile = kAttentionTile;

template <typename T>
const AttentionKernels<T>& kernels_for() {
  return row_kernels<T>().attention;
}

struct TiledDocument {
  int64_t begin, length;
  /// Exclusive ends of the keys that its rows see, as rows of the batch; null: each row's own key is
  /// its last.
  const int32_t* key_ends = nullptr;

  int64_t tiles() const { return (length + kTile - 1) / kTile; }
  int64_t rows_in(int64_t tile) const { return std::min(kTile, length - tile * kTile); }
  /// Last key tile visible to a query tile.
  int64_t last_key_tile(int64_t q_tile) const {
    if (key_ends == nullptr) return q_tile;
    return (key_ends[q_tile * kTile + rows_in(q_tile) - 1] - begin - 1) / kTile;
  }
  /// First query tile that sees a key tile: of the first row that sees its first key.
  int64_t first_query_tile(int64_t k_tile) const {
    if (key_ends == nullptr) return k_tile;
    const int64_t key = begin + k_tile * kTile;
    return (std::upper_bound(key_ends, key_ends + length, key) - key_ends) / kTile;
  }
  /// Whether queries of a tile may see keys after their own in a key tile.
  bool sees_ahead(int64_t q_tile, int64_t k_tile) const {
    return key_ends != nullptr && k_tile >= q_tile;
  }
  /// Ends of the keys that the queries of a tile see, from a key tile's first key.
  std::array<int32_t, kTile> ends_in_tile(int64_t q_tile, int64_t k_tile) const {
    std::array<int32_t, kTile> ends{};
    const int64_t first = q_tile * kTile, key = begin + k_tile * kTile, valid = rows_in(q_tile);
    for (int64_t q = 0; q < kTile; ++q) {
      const int64_t end = q < valid ? key_ends[first + q] : begin + first + q + 1;
      ends[static_cast<size_t>(q)] = static_cast<int32_t>(end - key);
    }
    return ends;
  }
};

/// The documents of a batch, and what their rows see.
class TiledBatch {
 public:
  TiledBatch(const BatchMetadata& batch, const AttentionShape& shape) {
    if (sees_both_ways(batch, shape)) {
      key_ends_.resize(static_cast<size_t>(batch.cu_seqlens.back()));
      write_key_ends(batch.both_ways, key_ends_);
    }
    auto span = batch.both_ways.begin();
    for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
      const int32_t begin = batch.cu_seqlens[i], end = batch.cu_seqlens[i + 1];
      while (span != batch.both_ways.end() && span->first < begin) ++span;
      const bool has_spans =
          !key_ends_.empty() && span != batch.both_ways.end() && span->first < end;
      documents_.push_back({begin, end - begin, has_spans ? key_ends_.data() + begin : nullptr});
    }
  }
  const std::vector<TiledDocument>& documents() const { return documents_; }

 private:
  std::vector<int32_t> key_ends_;
  std::vector<TiledDocument> documents_;
};

/// Visibility and scaling of the scores of one tile.
class TileScores {
 public:
  explicit TileScores(const AttentionShape& shape)
      : scale_(static_cast<float>(shape.scale)),
        cap_(static_cast<float>(shape.softcap)),
        window_(shape.window) {}

  /// First key tile visible to a query tile.
  int64_t first_key_tile(int64_t q_tile) const {
    return window_ == 0 ? 0 : std::max<int64_t>(0, q_tile * kTile - window_ + 1) / kTile;
  }
  /// Last query tile that sees a key tile.
  int64_t last_query_tile(int64_t k_tile, int64_t tiles) const {
    if (window_ == 0) return tiles - 1;
    return std::min(tiles - 1, ((k_tile + 1) * kTile + window_ - 2) / kTile);
  }
  TileMask mask(int64_t q_tile, int64_t k_tile) const {
    const int64_t offset = (q_tile - k_tile) * kTile;
    return {window_ == 0 ? -kTile : offset - window_ + 1, offset + 1};
  }
  /// Soft-caps the scores of a tile if there is a cap; they are scaled then.
  void cap(float* scores) const {
    if (cap_ > 0) kernels_for<float>().cap_scores(scores, scale_, cap_);
  }
  /// Factor that scores still need after `cap`.
  float left_scale() const { return cap_ > 0 ? 1.0F : scale_; }
  float scale() const { return scale_; }
  float softcap() const { return cap_; }

 private:
  float scale_, cap_;
  int64_t window_;
};

/// Runs body(item) for all items, assigned to threads round-robin, so that cheap and expensive
/// items spread evenly. The result does not depend on the assignment.
template <typename L, typename Body>
void for_items(int64_t count, Body&& body) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(1, count));
  parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    L::begin();
    for (int64_t thread = first; thread < last; ++thread) {
      for (int64_t item = thread; item < count; item += threads) body(item);
    }
    L::end();
  });
}

/// Uninitialised working memory of one item, from LibTorch's allocator: malloc would map and the
/// system clear such large blocks each time.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t elements)
      : memory_(at::empty({elements * static_cast<int64_t>(sizeof(T))}, at::kByte)),
        data_(reinterpret_cast<T*>(memory_.data_ptr<uint8_t>())) {}
  T* data() const { return data_; }

 private:
  at::Tensor memory_;
  T* data_;
};

template <typename T>
struct Operands {
  const T* q;
  const T* k;
  const T* v;
  int64_t q_stride, kv_stride, depth, group;  // group: query heads per key/value head
};

template <typename T>
Operands<T> operands_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionShape& s) {
  return {static_cast<const T*>(q.const_data_ptr()),
          static_cast<const T*>(k.const_data_ptr()),
          static_cast<const T*>(v.const_data_ptr()),
          q.size(1),
          k.size(1),
          s.head_dim,
          s.num_heads / s.num_kv_heads};
}

/// Forward pass of one query tile of one head.
template <typename L, typename T = typename L::Value, typename Packed = typename L::Packed>
void forward_tile(const Operands<T>& in, const TiledDocument& doc, int64_t head, int64_t q_tile,
                  const TileScores& tile_scores, const Packed* k_packed, const Packed* v_packed,
                  T* out, float* lse) {
  const auto& kernels = kernels_for<T>();
  const int64_t depth = in.depth, packed_size = L::size(kTile, depth);
  const Scratch<Packed> queries(packed_size), room(L::size(kTile, kTile));
  const Scratch<T> p(kTile * kTile);
  const Scratch<float> scores(kTile * kTile), acc(kTile * depth);
  std::fill_n(acc.data(), kTile * depth, 0.0F);
  std::array<float, kTile> maximum, sum{};
  maximum.fill(-1e30F);  // finite, because inf - inf is NaN
  const int64_t row = doc.begin + q_tile * kTile, valid = doc.rows_in(q_tile);
  L::pack_left(in.q + row * in.q_stride + head * depth, in.q_stride, valid, depth, queries.data());
  const int64_t last_key_tile = doc.last_key_tile(q_tile);
  for (int64_t k_tile = tile_scores.first_key_tile(q_tile); k_tile <= last_key_tile; ++k_tile) {
    L::product(kTile, kTile, depth, false, queries.data(), k_packed + k_tile * packed_size,
               scores.data());
    tile_scores.cap(scores.data());
    const TileMask mask = tile_scores.mask(q_tile, k_tile);
    if (doc.sees_ahead(q_tile, k_tile)) {
      const auto ends = doc.ends_in_tile(q_tile, k_tile);
      kernels.softmax_tile_ahead(scores.data(), tile_scores.left_scale(), {mask.first, ends.data()},
                                 depth, maximum.data(), sum.data(), acc.data(), p.data());
    } else {
      kernels.softmax_tile(scores.data(), tile_scores.left_scale(), mask, depth, maximum.data(),
                           sum.data(), acc.data(), p.data());
    }
    L::product(kTile, depth, kTile, true, L::left_square(p.data(), room.data()),
               v_packed + k_tile * packed_size, acc.data());
  }
  kernels.finish_rows(acc.data(), maximum.data(), sum.data(), valid, depth,
                      out + row * in.q_stride + head * depth, in.q_stride, lse + row);
}

template <typename L>
AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const BatchMetadata& batch, const AttentionShape& shape) {
  using T = typename L::Value;
  using Packed = typename L::Packed;
  const Operands<T> in = operands_of<T>(q, k, v, shape);
  const int64_t depth = shape.head_dim, packed_size = L::size(kTile, depth), num_tokens = q.size(0);
  const TileScores scores(shape);
  AttentionOutput result;
  result.out = at::empty_like(q);
  result.lse.push_back(at::empty({shape.num_heads, num_tokens}, at::kFloat));
  auto* out = static_cast<T*>(result.out.data_ptr());
  auto* lse = result.lse[0].data_ptr<float>();

  const TiledBatch tiled(batch, shape);
  struct Item {
    const TiledDocument* doc;
    int64_t first_tile;  // index of the document's first tile among all tiles
    int64_t index;       // head or key/value head
    int64_t tile;
  };
  std::vector<Item> packs, queries;
  int64_t total_tiles = 0;
  for (const TiledDocument& doc : tiled.documents()) {
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
      for (int64_t t = 0; t < doc.tiles(); ++t) packs.push_back({&doc, total_tiles, h, t});
    }
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      for (int64_t t = doc.tiles() - 1; t >= 0; --t) queries.push_back({&doc, total_tiles, h, t});
    }
    total_tiles += doc.tiles();
  }
  // Keys transposed, values not, tile by tile: [kv_heads][tiles][packed_size].
  const Scratch<Packed> keys(shape.num_kv_heads * total_tiles * packed_size),
      values(shape.num_kv_heads * total_tiles * packed_size);
  const auto slot = [&](int64_t kv_head, int64_t tile) {
    return (kv_head * total_tiles + tile) * packed_size;
  };
  for_items<L>(static_cast<int64_t>(packs.size()), [&](int64_t i) {
    const Item& item = packs[static_cast<size_t>(i)];
    const int64_t row = item.doc->begin + item.tile * kTile, valid = item.doc->rows_in(item.tile);
    const int64_t source = row * in.kv_stride + item.index * depth,
                  to = slot(item.index, item.first_tile + item.tile);
    L::pack_right_transposed(in.k + source, in.kv_stride, valid, depth, keys.data() + to);
    L::pack_right(in.v + source, in.kv_stride, valid, depth, values.data() + to);
  });
  for_items<L>(static_cast<int64_t>(queries.size()), [&](int64_t i) {
    const Item& item = queries[static_cast<size_t>(i)];
    const int64_t from = slot(item.index / in.group, item.first_tile);
    forward_tile<L>(in, *item.doc, item.index, item.tile, scores, keys.data() + from,
                    values.data() + from, out, lse + item.index * num_tokens);
  });
  return result;
}

/// Operands of one head of one document, packed tile by tile.
template <typename L>
struct BackwardHead {
  using Packed = typename L::Packed;
  Scratch<Packed> k, v, k_transposed;                        // left operands
  Scratch<Packed> q, q_transposed, d_out, d_out_transposed;  // right operands
  Scratch<float> lse, delta;                                 // [tiles * kTile]
  Scratch<float> dq_transposed;                              // [tiles][depth, kTile]

  BackwardHead(int64_t tiles, int64_t depth)
      : BackwardHead(tiles * kTile, tiles * kTile * depth, tiles * L::size(kTile, depth)) {}

 private:
  BackwardHead(int64_t rows, int64_t values, int64_t size)
      : k(size),
        v(size),
        k_transposed(size),
        q(size),
        q_transposed(size),
        d_out(size),
        d_out_transposed(size),
        lse(rows),
        delta(rows),
        dq_transposed(values) {
    std::fill_n(lse.data(), rows, 1e30F);  // exp(score - 1e30) = 0 for rows past the end
    std::fill_n(dq_transposed.data(), values, 0.0F);
  }
};

template <typename L, typename T = typename L::Value>
BackwardHead<L> pack_head(const Operands<T>& in, const T* d_out, const T* out, const float* lse,
                          const TiledDocument& doc, int64_t head) {
  const int64_t depth = in.depth, stride = in.q_stride;
  BackwardHead<L> packed(doc.tiles(), depth);
  for (int64_t tile = 0; tile < doc.tiles(); ++tile) {
    const int64_t row = doc.begin + tile * kTile, valid = doc.rows_in(tile),
                  to = tile * L::size(kTile, depth);
    const int64_t at_q = row * stride + head * depth;
    const T* k = in.k + row * in.kv_stride + head / in.group * depth;
    const T* v = in.v + row * in.kv_stride + head / in.group * depth;
    L::pack_left(k, in.kv_stride, valid, depth, packed.k.data() + to);
    L::pack_left(v, in.kv_stride, valid, depth, packed.v.data() + to);
    L::pack_left_transposed(k, in.kv_stride, valid, depth, packed.k_transposed.data() + to);
    L::pack_right(in.q + at_q, stride, valid, depth, packed.q.data() + to);
    L::pack_right_transposed(in.q + at_q, stride, valid, depth, packed.q_transposed.data() + to);
    L::pack_right(d_out + at_q, stride, valid, depth, packed.d_out.data() + to);
    L::pack_right_transposed(d_out + at_q, stride, valid, depth,
                             packed.d_out_transposed.data() + to);
    std::copy_n(lse + row, valid, packed.lse.data() + tile * kTile);
    kernels_for<T>().row_dots(d_out + at_q, out + at_q, stride, valid, depth,
                              packed.delta.data() + tile * kTile);
  }
  return packed;
}

/// dq of one head, and its contribution to dk and dv [tiles * kTile, depth] fp32.
template <typename L, typename T = typename L::Value>
void backward_head(const Operands<T>& in, BackwardHead<L>& h, const TiledDocument& doc,
                   int64_t head, const TileScores& tile_scores, T* dq, float* dk, float* dv) {
  using Packed = typename L::Packed;
  const auto& kernels = kernels_for<T>();
  const int64_t depth = in.depth, size = kTile * depth, packed_size = L::size(kTile, depth),
                tiles = doc.tiles();
  constexpr int64_t kSquare = kTile * kTile;
  const Scratch<float> scores(kSquare), dp(kSquare);
  const Scratch<T> p(kSquare), ds(kSquare);
  const Scratch<Packed> room(L::size(kTile, kTile));
  for (int64_t k_tile = 0; k_tile < tiles; ++k_tile) {
    const int64_t k_at = k_tile * packed_size;
    const int64_t first_tile = doc.first_query_tile(k_tile),
                  last_tile = tile_scores.last_query_tile(k_tile, tiles);
    for (int64_t q_tile = first_tile; q_tile <= last_tile; ++q_tile) {
      const bool add = q_tile != first_tile;
      const int64_t q_at = q_tile * packed_size;
      L::product(kTile, kTile, depth, false, h.k.data() + k_at, h.q_transposed.data() + q_at,
                 scores.data());
      L::product(kTile, kTile, depth, false, h.v.data() + k_at, h.d_out_transposed.data() + q_at,
                 dp.data());
      tile_scores.cap(scores.data());
      const float *lse = h.lse.data() + q_tile * kTile, *delta = h.delta.data() + q_tile * kTile;
      const TileMask mask = tile_scores.mask(q_tile, k_tile);
      if (doc.sees_ahead(q_tile, k_tile)) {
        const auto ends = doc.ends_in_tile(q_tile, k_tile);
        kernels.softmax_tile_ahead_backward(scores.data(), dp.data(), lse, delta,
                                            tile_scores.scale(), tile_scores.softcap(),
                                            {mask.first, ends.data()}, p.data(), ds.data());
      } else {
        kernels.softmax_tile_backward(scores.data(), dp.data(), lse, delta, tile_scores.scale(),
                                      tile_scores.softcap(), mask, p.data(), ds.data());
      }
      L::product(kTile, depth, kTile, add, L::left_square(p.data(), room.data()),
                 h.d_out.data() + q_at, dv + k_tile * size);
      L::product(kTile, depth, kTile, add, L::left_square(ds.data(), room.data()),
                 h.q.data() + q_at, dk + k_tile * size);
      L::product(depth, kTile, kTile, true, h.k_transposed.data() + k_at,
                 L::right_square(ds.data(), room.data()), h.dq_transposed.data() + q_tile * size);
    }
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    kernels.unpack_transposed(h.dq_transposed.data() + tile * size, doc.rows_in(tile), depth,
                              dq + (doc.begin + tile * kTile) * in.q_stride + head * depth,
                              in.q_stride);
  }
}

template <typename L>
AttentionGrads backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const AttentionOutput& saved,
                        const BatchMetadata& batch, const AttentionShape& shape) {
  using T = typename L::Value;
  const Operands<T> in = operands_of<T>(q, k, v, shape);
  const auto& kernels = kernels_for<T>();
  const int64_t depth = shape.head_dim, num_tokens = q.size(0);
  const TileScores scores(shape);
  AttentionGrads grads{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const auto* d_out_data = static_cast<const T*>(d_out.const_data_ptr());
  const auto* out_data = static_cast<const T*>(saved.out.const_data_ptr());
  const float* lse = saved.lse[0].const_data_ptr<float>();
  const TiledBatch tiled(batch, shape);
  for (const TiledDocument& doc : tiled.documents()) {
    const int64_t head_size = doc.tiles() * kTile * depth;
    const at::Tensor partial = at::empty({2, shape.num_heads, head_size}, at::kFloat);
    float* dk = partial.data_ptr<float>();
    float* dv = dk + shape.num_heads * head_size;
    for_items<L>(shape.num_heads, [&](int64_t head) {
      BackwardHead<L> packed =
          pack_head<L>(in, d_out_data, out_data, lse + head * num_tokens, doc, head);
      backward_head<L>(in, packed, doc, head, scores, static_cast<T*>(grads.dq.data_ptr()),
                       dk + head * head_size, dv + head * head_size);
    });
    for_items<L>(shape.num_kv_heads * doc.tiles(), [&](int64_t i) {
      const int64_t kv_head = i / doc.tiles(), tile = i % doc.tiles();
      const int64_t from = kv_head * in.group * head_size + tile * kTile * depth;
      const int64_t to = (doc.begin + tile * kTile) * in.kv_stride + kv_head * depth;
      const int64_t valid = doc.rows_in(tile);
      kernels.sum_rows(dk + from, in.group, head_size, valid, depth,
                       static_cast<T*>(grads.dk.data_ptr()) + to, in.kv_stride);
      kernels.sum_rows(dv + from, in.group, head_size, valid, depth,
                       static_cast<T*>(grads.dv.data_ptr()) + to, in.kv_stride);
    });
  }
  return grads;
}

/// Calls body with the fastest layout that is supported.
template <typename Body>
auto with_layout(const at::Tensor& q, const AttentionShape& shape, const Body& body) {
  const bool by_tiles = TileLayout<float>::serves(shape.head_dim);
  if (q.scalar_type() == at::kFloat)
    return by_tiles ? body(TileLayout<float>()) : body(BlockLayout<float>());
  return by_tiles ? body(TileLayout<uint16_t>()) : body(BlockLayout<uint16_t>());
}

}  // namespace

bool tiled_attention_serves(at::ScalarType dtype, const AttentionShape& shape) {
  constexpr int64_t kMinDepth = 16, kMaxDepth = 256;
  const int64_t depth = shape.head_dim;
  if (depth < kMinDepth || depth > kMaxDepth || depth % 16 != 0) return false;
  return block_product_serves(dtype);
}

AttentionOutput tiled_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const BatchMetadata& batch,
                                        const AttentionShape& shape) {
  return with_layout(q, shape,
                     [&](auto layout) { return forward<decltype(layout)>(q, k, v, batch, shape); });
}

AttentionGrads tiled_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOutput& saved, const BatchMetadata& batch,
                                        const AttentionShape& shape) {
  return with_layout(q, shape, [&](auto layout) {
    return backward<decltype(layout)>(d_out, q, k, v, saved, batch, shape);
  });
}

}  // namespace sftrun::kernels
