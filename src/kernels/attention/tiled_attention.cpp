#include "tiled_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "../brgemm.h"
#include "../parallel.h"
#include "sftrun/core/error.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kTile = kAttentionTile;

template <typename T>
void product(int64_t m, int64_t n, int64_t k, bool add, const T* a, const T* b, float* c) {
  brgemm(m, n, k, add, a, /*a_stride=*/k, b, c);
}

template <typename T>
constexpr bool kPaired = std::is_same_v<T, uint16_t>;

template <typename T>
const AttentionKernels<T>& kernels_for() {
  return row_kernels<T>().attention;
}

struct Document {
  int64_t begin, length;
  int64_t tiles() const { return (length + kTile - 1) / kTile; }
  int64_t rows_in(int64_t tile) const { return std::min(kTile, length - tile * kTile); }
};

std::vector<Document> documents_of(const BatchContext& batch) {
  std::vector<Document> documents;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    documents.push_back({batch.cu_seqlens[i], batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]});
  }
  return documents;
}

/// What one tile of queries sees, and what is done to its scores.
class Scores {
 public:
  explicit Scores(const AttentionShape& shape)
      : scale_(static_cast<float>(shape.scale)),
        cap_(static_cast<float>(shape.softcap)),
        window_(shape.window) {}

  /// The first tile of keys that a tile of queries sees; the last one is its own.
  int64_t first_key_tile(int64_t q_tile) const {
    return window_ == 0 ? 0 : std::max<int64_t>(0, q_tile * kTile - window_ + 1) / kTile;
  }
  /// The last tile of queries that sees a tile of keys; the first one is its own.
  int64_t last_query_tile(int64_t k_tile, int64_t tiles) const {
    if (window_ == 0) return tiles - 1;
    return std::min(tiles - 1, ((k_tile + 1) * kTile + window_ - 2) / kTile);
  }
  TileMask mask(int64_t q_tile, int64_t k_tile) const {
    const int64_t offset = (q_tile - k_tile) * kTile;
    return {window_ == 0 ? -kTile : offset - window_ + 1, offset + 1};
  }
  /// Caps a tile's scores where there is a cap; they are scaled then.
  void cap(float* scores) const {
    if (cap_ > 0) kernels_for<float>().cap_scores(scores, scale_, cap_);
  }
  /// What scores are still to be multiplied by after `cap`.
  float left_scale() const { return cap_ > 0 ? 1.0F : scale_; }
  float scale() const { return scale_; }
  float softcap() const { return cap_; }

 private:
  float scale_, cap_;
  int64_t window_;
};

/// Runs body(item) for every item; threads take turns, so that cheap and dear items spread evenly.
/// Which thread runs an item does not change its result.
template <typename Body>
void for_items(int64_t count, Body&& body) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(1, count));
  parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      for (int64_t item = thread; item < count; item += threads) body(item);
    }
    at::native::cpublas::brgemm_release();
  });
}

/// Working memory of one item, not initialised. Allocated through LibTorch: the heads' operands are
/// of the size that malloc would map, and have the system clear, anew each time.
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

/// A right operand [rows, columns] in the layout that products of T want.
template <typename T>
class RightOperand {
 public:
  RightOperand(int64_t rows, int64_t columns)
      : rows_(rows), columns_(columns), scratch_(kPaired<T> ? rows * columns : 0) {}
  /// `fill` writes the plain [rows, columns] to its argument.
  template <typename Fill>
  void write(T* to, Fill&& fill) {
    if constexpr (kPaired<T>) {
      fill(scratch_.data());
      kernels_for<T>().pair_rows(scratch_.data(), rows_, columns_, to);
    } else {
      fill(to);
    }
  }

 private:
  int64_t rows_, columns_;
  Scratch<T> scratch_;
};

template <typename T>
struct Operands {
  const T* q;
  const T* k;
  const T* v;
  int64_t q_stride, kv_stride, depth, group;  // group: query heads per kv head
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

/// Forward of one query tile of one head: its keys and values are packed as it goes.
template <typename T>
void forward_tile(const Operands<T>& in, const Document& doc, int64_t head, int64_t q_tile,
                  const Scores& of, const T* k_packed, const T* v_packed, T* out, float* lse) {
  const auto& kernels = kernels_for<T>();
  const int64_t depth = in.depth, tile_size = kTile * depth;
  const Scratch<T> queries(tile_size), p(kTile * kTile);
  const Scratch<float> scores(kTile * kTile), acc(tile_size);
  std::fill_n(acc.data(), tile_size, 0.0F);
  std::array<float, kTile> maximum, sum{};
  maximum.fill(-1e30F);  // finite: the difference of two infinities is NaN
  const int64_t row = doc.begin + q_tile * kTile, valid = doc.rows_in(q_tile);
  kernels.pack_rows(in.q + row * in.q_stride + head * depth, in.q_stride, valid, depth,
                    queries.data());
  for (int64_t k_tile = of.first_key_tile(q_tile); k_tile <= q_tile; ++k_tile) {
    product(kTile, kTile, depth, false, queries.data(), k_packed + k_tile * tile_size,
            scores.data());
    of.cap(scores.data());
    kernels.softmax_tile(scores.data(), of.left_scale(), of.mask(q_tile, k_tile), depth,
                         maximum.data(), sum.data(), acc.data(), p.data());
    product(kTile, depth, kTile, true, p.data(), v_packed + k_tile * tile_size, acc.data());
  }
  kernels.finish_rows(acc.data(), maximum.data(), sum.data(), valid, depth,
                      out + row * in.q_stride + head * depth, in.q_stride, lse + row);
}

template <typename T>
AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const BatchContext& batch, const AttentionShape& shape) {
  const Operands<T> in = operands_of<T>(q, k, v, shape);
  const auto& kernels = kernels_for<T>();
  const int64_t depth = shape.head_dim, tile_size = kTile * depth, num_tokens = q.size(0);
  const Scores scores(shape);
  AttentionOutput result;
  result.out = at::empty_like(q);
  result.lse.push_back(at::empty({shape.num_heads, num_tokens}, at::kFloat));
  auto* out = static_cast<T*>(result.out.data_ptr());
  auto* lse = result.lse[0].data_ptr<float>();

  const std::vector<Document> documents = documents_of(batch);
  struct Item {
    const Document* doc;
    int64_t first_tile;  // of the document, among all documents' tiles
    int64_t index;       // head or kv head
    int64_t tile;
  };
  std::vector<Item> packs, queries;
  int64_t total_tiles = 0;
  for (const Document& doc : documents) {
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
      for (int64_t t = 0; t < doc.tiles(); ++t) packs.push_back({&doc, total_tiles, h, t});
    }
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      for (int64_t t = doc.tiles() - 1; t >= 0; --t) queries.push_back({&doc, total_tiles, h, t});
    }
    total_tiles += doc.tiles();
  }
  // Keys transposed and values as they are, tile by tile: [kv_heads][tiles][kTile * depth].
  const at::Tensor packed =
      at::empty({2, shape.num_kv_heads * total_tiles * tile_size}, q.options());
  auto* k_packed = static_cast<T*>(packed.data_ptr());
  T* v_packed = k_packed + shape.num_kv_heads * total_tiles * tile_size;
  const auto slot = [&](int64_t kv_head, int64_t tile) {
    return (kv_head * total_tiles + tile) * tile_size;
  };
  for_items(static_cast<int64_t>(packs.size()), [&](int64_t i) {
    const Item& item = packs[static_cast<size_t>(i)];
    const int64_t row = item.doc->begin + item.tile * kTile, valid = item.doc->rows_in(item.tile);
    const int64_t source = row * in.kv_stride + item.index * depth,
                  to = slot(item.index, item.first_tile + item.tile);
    RightOperand<T>(depth, kTile).write(k_packed + to, [&](T* plain) {
      kernels.pack_transposed(in.k + source, in.kv_stride, valid, depth, plain);
    });
    RightOperand<T>(kTile, depth).write(v_packed + to, [&](T* plain) {
      kernels.pack_rows(in.v + source, in.kv_stride, valid, depth, plain);
    });
  });
  for_items(static_cast<int64_t>(queries.size()), [&](int64_t i) {
    const Item& item = queries[static_cast<size_t>(i)];
    const int64_t from = slot(item.index / in.group, item.first_tile);
    forward_tile(in, *item.doc, item.index, item.tile, scores, k_packed + from, v_packed + from,
                 out, lse + item.index * num_tokens);
  });
  return result;
}

/// Everything one head of one document needs, packed tile by tile.
template <typename T>
struct BackwardHead {
  Scratch<T> k, v, k_transposed;                        // left operands
  Scratch<T> q, q_transposed, d_out, d_out_transposed;  // right operands
  Scratch<float> lse, delta;                            // [tiles * kTile]
  Scratch<float> dq_transposed;                         // [tiles][depth, kTile]

  BackwardHead(int64_t tiles, int64_t depth)
      : BackwardHead(tiles * kTile, tiles * kTile * depth, Sized{}) {}

 private:
  struct Sized {};
  BackwardHead(int64_t rows, int64_t size, Sized)
      : k(size),
        v(size),
        k_transposed(size),
        q(size),
        q_transposed(size),
        d_out(size),
        d_out_transposed(size),
        lse(rows),
        delta(rows),
        dq_transposed(size) {
    std::fill_n(lse.data(), rows, 1e30F);  // exp(score - 1e30) is 0 for rows past the end
    std::fill_n(dq_transposed.data(), size, 0.0F);
  }
};

template <typename T>
BackwardHead<T> pack_head(const Operands<T>& in, const T* d_out, const T* out, const float* lse,
                          const Document& doc, int64_t head) {
  const auto& kernels = kernels_for<T>();
  const int64_t depth = in.depth;
  BackwardHead<T> packed(doc.tiles(), depth);
  RightOperand<T> by_rows(kTile, depth), transposed(depth, kTile);
  for (int64_t tile = 0; tile < doc.tiles(); ++tile) {
    const int64_t row = doc.begin + tile * kTile, valid = doc.rows_in(tile),
                  to = tile * kTile * depth;
    const int64_t at_q = row * in.q_stride + head * depth,
                  at_kv = row * in.kv_stride + head / in.group * depth;
    kernels.pack_rows(in.k + at_kv, in.kv_stride, valid, depth, packed.k.data() + to);
    kernels.pack_rows(in.v + at_kv, in.kv_stride, valid, depth, packed.v.data() + to);
    kernels.pack_transposed(in.k + at_kv, in.kv_stride, valid, depth,
                            packed.k_transposed.data() + to);
    const auto pack_both = [&](const T* source, const Scratch<T>& rows, const Scratch<T>& columns) {
      by_rows.write(rows.data() + to,
                    [&](T* p) { kernels.pack_rows(source, in.q_stride, valid, depth, p); });
      transposed.write(columns.data() + to, [&](T* p) {
        kernels.pack_transposed(source, in.q_stride, valid, depth, p);
      });
    };
    pack_both(in.q + at_q, packed.q, packed.q_transposed);
    pack_both(d_out + at_q, packed.d_out, packed.d_out_transposed);
    std::copy_n(lse + row, valid, packed.lse.data() + tile * kTile);
    kernels.row_dots(d_out + at_q, out + at_q, in.q_stride, valid, depth,
                     packed.delta.data() + tile * kTile);
  }
  return packed;
}

/// dq of one head, and its share of dk and dv [tiles * kTile, depth] fp32.
template <typename T>
void backward_head(const Operands<T>& in, BackwardHead<T>& h, const Document& doc, int64_t head,
                   const Scores& of, T* dq, float* dk, float* dv) {
  const auto& kernels = kernels_for<T>();
  const int64_t depth = in.depth, size = kTile * depth, tiles = doc.tiles();
  constexpr int64_t kSquare = kTile * kTile;
  const Scratch<float> scores(kSquare), dp(kSquare);
  const Scratch<T> p(kSquare), ds(kSquare), ds_right(kSquare);
  RightOperand<T> right(kTile, kTile);
  for (int64_t k_tile = 0; k_tile < tiles; ++k_tile) {
    for (int64_t q_tile = k_tile; q_tile <= of.last_query_tile(k_tile, tiles); ++q_tile) {
      const bool first = q_tile == k_tile;
      product(kTile, kTile, depth, false, h.k.data() + k_tile * size,
              h.q_transposed.data() + q_tile * size, scores.data());
      product(kTile, kTile, depth, false, h.v.data() + k_tile * size,
              h.d_out_transposed.data() + q_tile * size, dp.data());
      of.cap(scores.data());
      kernels.softmax_tile_backward(scores.data(), dp.data(), h.lse.data() + q_tile * kTile,
                                    h.delta.data() + q_tile * kTile, of.scale(), of.softcap(),
                                    of.mask(q_tile, k_tile), p.data(), ds.data());
      product(kTile, depth, kTile, !first, p.data(), h.d_out.data() + q_tile * size,
              dv + k_tile * size);
      product(kTile, depth, kTile, !first, ds.data(), h.q.data() + q_tile * size,
              dk + k_tile * size);
      right.write(ds_right.data(), [&](T* plain) { std::copy_n(ds.data(), kSquare, plain); });
      product(depth, kTile, kTile, true, h.k_transposed.data() + k_tile * size, ds_right.data(),
              h.dq_transposed.data() + q_tile * size);
    }
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    kernels.unpack_transposed(h.dq_transposed.data() + tile * size, doc.rows_in(tile), depth,
                              dq + (doc.begin + tile * kTile) * in.q_stride + head * depth,
                              in.q_stride);
  }
}

template <typename T>
AttentionGrads backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const AttentionOutput& saved,
                        const BatchContext& batch, const AttentionShape& shape) {
  const Operands<T> in = operands_of<T>(q, k, v, shape);
  const auto& kernels = kernels_for<T>();
  const int64_t depth = shape.head_dim, num_tokens = q.size(0);
  const Scores scores(shape);
  AttentionGrads grads{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const auto* d_out_data = static_cast<const T*>(d_out.const_data_ptr());
  const auto* out_data = static_cast<const T*>(saved.out.const_data_ptr());
  const float* lse = saved.lse[0].const_data_ptr<float>();
  for (const Document& doc : documents_of(batch)) {
    const int64_t head_size = doc.tiles() * kTile * depth;
    const at::Tensor partial = at::empty({2, shape.num_heads, head_size}, at::kFloat);
    float* dk = partial.data_ptr<float>();
    float* dv = dk + shape.num_heads * head_size;
    for_items(shape.num_heads, [&](int64_t head) {
      BackwardHead<T> packed =
          pack_head(in, d_out_data, out_data, lse + head * num_tokens, doc, head);
      backward_head(in, packed, doc, head, scores, static_cast<T*>(grads.dq.data_ptr()),
                    dk + head * head_size, dv + head * head_size);
    });
    for_items(shape.num_kv_heads * doc.tiles(), [&](int64_t i) {
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

}  // namespace

bool tiled_attention_serves(at::ScalarType dtype, const AttentionShape& shape) {
  constexpr int64_t kLeastDepth = 16, kMostDepth = 256;
  const int64_t depth = shape.head_dim;
  if (depth < kLeastDepth || depth > kMostDepth || depth % 16 != 0) return false;
  return brgemm_serves(dtype);
}

AttentionOutput tiled_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const BatchContext& batch,
                                        const AttentionShape& shape) {
  return q.scalar_type() == at::kFloat ? forward<float>(q, k, v, batch, shape)
                                       : forward<uint16_t>(q, k, v, batch, shape);
}

AttentionGrads tiled_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOutput& saved, const BatchContext& batch,
                                        const AttentionShape& shape) {
  return q.scalar_type() == at::kFloat ? backward<float>(d_out, q, k, v, saved, batch, shape)
                                       : backward<uint16_t>(d_out, q, k, v, saved, batch, shape);
}

}  // namespace sftrun::kernels
