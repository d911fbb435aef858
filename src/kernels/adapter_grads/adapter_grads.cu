#include <mma.h>

#include "cuda/device.cuh"

// Gradients of LoRA A and B of several linears in one launch: products g^T x of which one side has
// few columns. Memory-bound: reads the wide side once. A block computes kWide columns of it and
// kRank columns of the thin side over all tokens, so the order of summation depends only on the
// shapes.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kWide = 64, kRank = 16, kDepth = 64;  // wide and thin columns, tokens per step
constexpr int kGradThreads = 128;                   // four warps with 16 wide columns each
// Row strides are padded against bank conflicts; rows are aligned to 16 bytes.
constexpr int kWideLead = kWide + 8, kRankLead = kRank + 8, kSumsLead = kRank + 4;

/// Product and first wide column that a block computes.
struct GradTile {
  int product;
  int64_t column;
};
__device__ __forceinline__ GradTile tile_of_block(const AdapterGrads& grads) {
  int64_t tile = blockIdx.x;
  int product = 0;
  for (; product < grads.count - 1; ++product) {
    const int64_t tiles = (grads.products[product].wide_columns + kWide - 1) / kWide;
    if (tile < tiles) break;
    tile -= tiles;
  }
  return {product, tile * kWide};
}

/// Loads rows [token, token + kDepth) and columns [column, column + kColumns) of x, zero out of
/// range, times factors[token] if not null.
template <int kColumns, int kLead, int kWidth, typename T>
__device__ __forceinline__ void load_tile(T* tile, const T* x, int64_t stride, int64_t columns,
                                          int64_t column, int64_t token, int64_t tokens,
                                          const float* factors = nullptr) {
  constexpr int kPieces = kColumns / kWidth;
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kPieces; i += kGradThreads) {
    const int row = i / kPieces, at = i % kPieces * kWidth;
    T* to = tile + row * kLead + at;
    float values[kWidth] = {};
    const bool is_inside = token + row < tokens && column + at < columns;
    if (is_inside) load_values<kWidth>(x + (token + row) * stride + column + at, values);
    if (is_inside && factors != nullptr) {
      const float factor = factors[token + row];
      for (int k = 0; k < kWidth; ++k) values[k] *= factor;
    }
    store_values<kWidth>(to, values);
  }
}

/// A block's accumulators on tensor cores: each warp has 16 wide columns by kRank.
template <typename T>
class GradSums {
 public:
  __device__ GradSums() { nvcuda::wmma::fill_fragment(sums_, 0.0F); }
  __device__ void add(const T* wide, const T* thin) {
    using namespace nvcuda::wmma;
    const int first = static_cast<int>(threadIdx.x) / 32 * 16;
    for (int k = 0; k < kDepth; k += 16) {
      fragment<matrix_a, 16, 16, 16, T, col_major> a;
      fragment<matrix_b, 16, 16, 16, T, row_major> b;
      load_matrix_sync(a, wide + k * kWideLead + first, kWideLead);
      load_matrix_sync(b, thin + k * kRankLead, kRankLead);
      mma_sync(sums_, a, b, sums_);
    }
  }
  __device__ void write(float* out) const {
    const int first = static_cast<int>(threadIdx.x) / 32 * 16;
    nvcuda::wmma::store_matrix_sync(out + first * kSumsLead, sums_, kSumsLead,
                                    nvcuda::wmma::mem_row_major);
  }

 private:
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sums_;
};

/// The same in fp32: two threads share a wide column, each has half of the thin columns.
template <>
class GradSums<float> {
 public:
  __device__ void add(const float* wide, const float* thin) {
    for (int k = 0; k < kDepth; ++k) {
      const float a = wide[k * kWideLead + column()];
      for (int i = 0; i < kHalf; ++i)
        sums_[i] = fmaf(a, thin[k * kRankLead + first() + i], sums_[i]);
    }
  }
  __device__ void write(float* out) const {
    for (int i = 0; i < kHalf; ++i) out[column() * kSumsLead + first() + i] = sums_[i];
  }

 private:
  static constexpr int kHalf = kRank / 2;
  __device__ static int column() { return static_cast<int>(threadIdx.x) % kWide; }
  __device__ static int first() { return static_cast<int>(threadIdx.x) / kWide * kHalf; }
  float sums_[kHalf] = {};
};

/// Whether four consecutive sums along one side form an aligned vector of `out`.
/// @param step, other_step elements between neighbouring sums along this side and the other
__device__ __forceinline__ bool is_in_fours(const float* out, int64_t count, int64_t step,
                                            int64_t other_step) {
  constexpr uintptr_t kVector = 16;
  return step == 1 && count % 4 == 0 && other_step % 4 == 0 &&
         reinterpret_cast<uintptr_t>(out) % kVector == 0;
}

/// out += scale * gain * result for the columns and ranks in range, in contiguous groups of
/// kColumns by kRanks.
template <typename T, int kColumns, int kRanks>
__device__ __forceinline__ void add_result(const AdapterGrad& grad, const float* result,
                                           int64_t first_column, int64_t first_rank) {
  // Coalesced: consecutive threads access consecutive elements of `out`.
  constexpr int kAcross = kColumns > 1 ? kWide / kColumns : kRank / kRanks,
                kPieces = kWide * kRank / (kColumns * kRanks);
  for (int i = static_cast<int>(threadIdx.x); i < kPieces; i += kGradThreads) {
    const int column = kColumns > 1 ? i % kAcross * kColumns : i / kAcross,
              rank = kColumns > 1 ? i / kAcross : i % kAcross * kRanks;
    if (first_column + column >= grad.wide_columns || first_rank + rank >= grad.rank) continue;
    float* out =
        grad.out + (first_column + column) * grad.wide_step + (first_rank + rank) * grad.rank_step;
    const float* sums = result + column * kSumsLead + rank;
    const auto factor = [&](int k) {
      if (grad.rstd == nullptr) return grad.scale;
      const int64_t at = first_column + column + k;
      return grad.scale * (grad.offset + load(static_cast<const T*>(grad.weight) + at));
    };
    if constexpr (kColumns * kRanks == 4) {
      float values[4];
      load_four(out, values);
      for (int k = 0; k < 4; ++k)
        values[k] += kColumns > 1 ? factor(k) * sums[k * kSumsLead] : factor(0) * sums[k];
      store_four(out, values);
    } else {
      *out += factor(0) * sums[0];
    }
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kGradThreads)
    adapter_grads(const __grid_constant__ AdapterGrads grads) {
  __shared__ __align__(32) T wide[kDepth * kWideLead];
  __shared__ __align__(32) T thin[kDepth * kRankLead];
  __shared__ __align__(32) float result[kWide * kSumsLead];
  const GradTile tile = tile_of_block(grads);
  const AdapterGrad& grad = grads.products[tile.product];
  const int64_t first_rank = static_cast<int64_t>(blockIdx.y) * kRank;
  if (first_rank >= grad.rank) return;
  GradSums<T> sums;
  for (int64_t token = 0; token < grads.tokens; token += kDepth) {
    load_tile<kWide, kWideLead, kWidth>(wide, static_cast<const T*>(grad.wide), grad.wide_stride,
                                        grad.wide_columns, tile.column, token, grads.tokens,
                                        grad.rstd);
    load_tile<kRank, kRankLead, kWidth>(thin, static_cast<const T*>(grad.thin), grad.thin_stride,
                                        grad.rank, first_rank, token, grads.tokens);
    __syncthreads();
    sums.add(wide, thin);
    __syncthreads();
  }
  sums.write(result);
  __syncthreads();
  if (is_in_fours(grad.out, grad.rank, grad.rank_step, grad.wide_step))
    add_result<T, 1, 4>(grad, result, tile.column, first_rank);
  else if (is_in_fours(grad.out, grad.wide_columns, grad.wide_step, grad.rank_step))
    add_result<T, 4, 1>(grad, result, tile.column, first_rank);
  else
    add_result<T, 1, 1>(grad, result, tile.column, first_rank);
}

/// Whether the rows of all operands begin and end at multiples of 16 bytes.
bool grads_in_eights(Type type, const AdapterGrads& grads) {
  for (int i = 0; i < grads.count; ++i) {
    const AdapterGrad& grad = grads.products[i];
    if (!strides_in_eights(type, {grad.wide_stride, grad.thin_stride}) ||
        !in_eights(grad.wide_columns, {grad.wide}) || !in_eights(grad.rank, {grad.thin})) {
      return false;
    }
  }
  return true;
}

}  // namespace

void launch_adapter_grads(Type type, const AdapterGrads& grads, Stream stream) {
  int64_t tiles = 0, rank = 0;
  for (int i = 0; i < grads.count; ++i) {
    tiles += (grads.products[i].wide_columns + kWide - 1) / kWide;
    rank = grads.products[i].rank > rank ? grads.products[i].rank : rank;
  }
  if (tiles == 0 || rank == 0 || grads.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>((rank + kRank - 1) / kRank));
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(grads_in_eights(type, grads), [&](auto width) {
      launch(adapter_grads<T, decltype(width)::value>, grid, kGradThreads, stream, grads);
    });
  });
}

}  // namespace sftrun::kernels::cuda
