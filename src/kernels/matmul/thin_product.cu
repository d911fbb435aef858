#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "cuda/device.cuh"
#include "cuda/staging.cuh"
#include "cuda/thin_product.h"
#include "matmul/thin_product_launch.h"

// Memory-bound: the quantised matrix is read once; dequantising it first would write and read 16
// bits per value. Compiled with -fmad=false; only explicit fmaf is fused, so the dequantised values
// equal those of dequantize.cu.
namespace sftrun::kernels::cuda {
namespace {

#include "sftrun/weights/ggml_blocks.inl"

/// Reads rows of x of any dtype; the branch is uniform across threads. Offsets are in bytes, so
/// that the dtypes share the address computation.
struct TypedRows {
  explicit __device__ TypedRows(const ThinProduct& product)
      : x(static_cast<const char*>(product.x)),
        size(product.type == Type::kFloat32 ? 4 : 2),
        stride(product.x_stride * size),
        type(product.type) {}

  __device__ __forceinline__ void operator()(int64_t token, int64_t k, float* out) const {
    const char* from = x + (token * stride + k * size);
    if (type == Type::kBFloat16)
      load_eight(reinterpret_cast<const __nv_bfloat16*>(from), out);
    else if (type == Type::kFloat16)
      load_eight(reinterpret_cast<const __half*>(from), out);
    else
      load_eight(reinterpret_cast<const float*>(from), out);
  }

  const char* x;
  int size;
  int64_t stride;
  Type type;
};

__device__ __forceinline__ void store_typed(Type type, void* y, int64_t at, float value) {
  if (type == Type::kBFloat16)
    store(static_cast<__nv_bfloat16*>(y) + at, value);
  else if (type == Type::kFloat16)
    store(static_cast<__half*>(y) + at, value);
  else
    store(static_cast<float*>(y) + at, value);
}

/// Sums over the lanes of each warp, then over warps; one thread stores each result.
template <int kRows, int kTokens>
__device__ void store_sums(const ThinProduct& product, int64_t rows, const ThinTile& tile,
                           const float (&sums)[kRows][kTokens]) {
  constexpr int kSums = kRows * kTokens, kThinWarps = kThinThreads / 32;
  __shared__ float of_warp[kThinWarps][kSums];
  static_assert(kSums <= kThinThreads);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < kSums; ++i) {
    float sum = sums[i / kTokens][i % kTokens];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
    if (thread % 32 == 0) of_warp[thread / 32][i] = sum;
  }
  __syncthreads();
  if (thread >= kSums) return;
  const int64_t row = tile.row + thread / kTokens, token = tile.token + thread % kTokens;
  if (row >= rows || token >= tile.tokens) return;
  float total = 0;
  for (int warp = 0; warp < kThinWarps; ++warp) total += of_warp[warp][thread];
  store_typed(product.type, product.y, token * rows + row, total);
}

/// Loads the bytes of a tile's rows, kThinGroups groups at a time, to shared memory.
template <typename View>
class StagedBytes {
 public:
  static constexpr int kRows = View::kRowsAtOnce;
  using RowStaging = Staging<static_cast<int>(View::bytes_before(kThinGroups)), kThinThreads>;

  __device__ StagedBytes(const View& w, uint8_t (&memory)[kRows][RowStaging::kBytes])
      : w_(w), memory_(memory) {}
  __device__ __forceinline__ void load(int64_t row, int64_t group) {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t before = View::bytes_before(group), left = w_.row_bytes() - before;
    constexpr int64_t kMax = View::bytes_before(kThinGroups);
    RowStaging staging[kRows];
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* from = w_.bytes() + thin_row(w_, row + r) * w_.row_bytes() + before;
      staging[r].load(from, left < kMax ? left : kMax, thread);
      first_[r] = memory_[r] + RowStaging::shift_of(from);
    }
    __syncthreads();  // the previous content has been read
    for (int r = 0; r < kRows; ++r) staging[r].store(memory_[r], thread);
    __syncthreads();
  }
  __device__ __forceinline__ const uint8_t* at(int r, int64_t /*row*/, int64_t group) const {
    return first_[r] + View::bytes_before(group % kThinGroups);
  }

 private:
  const View& w_;
  uint8_t (&memory_)[kRows][RowStaging::kBytes];
  const uint8_t* first_[kRows];
};

template <int kTokens, typename View>
__device__ __forceinline__ void multiply_thin(const ThinProduct& product, const View& w) {
  const ThinTile tile{static_cast<int64_t>(blockIdx.x) * View::kRowsAtOnce,
                      static_cast<int64_t>(blockIdx.y) * kTokens, product.tokens};
  using Bytes = StagedBytes<View>;
  __shared__ __align__(16) uint8_t memory[View::kRowsAtOnce][Bytes::RowStaging::kBytes];
  float sums[View::kRowsAtOnce][kTokens] = {};
  add_thread_products<kTokens>(w, Bytes(w, memory), TypedRows(product), tile,
                               static_cast<int>(threadIdx.x), sums);
  store_sums(product, w.rows, tile, sums);
}

/// Blocks per multiprocessor: enough loads in flight; more tokens need more registers.
template <int kTokens>
constexpr int kThinBlocks = kTokens > 3 ? 3 : 4;

template <int kTokens, typename View>
__global__ void __launch_bounds__(kThinThreads, kThinBlocks<kTokens>)
    thin_product(ThinProduct product, View w) {
  multiply_thin<kTokens>(product, w);
}

template <int kTokens, typename View>
__global__ void __launch_bounds__(kThinThreads, kThinBlocks<kTokens>)
    thin_product_4bit(ThinProduct product, View w, const __grid_constant__ FourBitTables tables) {
  w.tables = shared_tables(tables, w.is_nested());
  multiply_thin<kTokens>(product, w);
}

/// Calls launch(tokens per block as a type, grid).
template <typename View, typename Launch>
void for_tokens(const ThinProduct& product, const View& w, Launch&& launch) {
  if (product.tokens == 0 || w.rows == 0) return;
  const auto with = [&](auto at_once) {
    constexpr int kTokens = decltype(at_once)::value;
    launch(at_once,
           dim3(static_cast<unsigned>((w.rows + View::kRowsAtOnce - 1) / View::kRowsAtOnce),
                static_cast<unsigned>((product.tokens + kTokens - 1) / kTokens)));
  };
  if (product.tokens == 1)
    with(std::integral_constant<int, 1>());
  else if (product.tokens <= 3)
    with(std::integral_constant<int, 3>());
  else
    with(std::integral_constant<int, kThinTokens>());
}

template <typename View>
void launch_of(const ThinProduct& product, const View& w, Stream stream) {
  for_tokens(product, w, [&](auto at_once, dim3 grid) {
    launch(thin_product<decltype(at_once)::value, View>, grid, kThinThreads, stream, product, w);
  });
}

}  // namespace

void launch_thin_product_4bit(const ThinProduct& product, const FourBitView& w,
                              const FourBitTables& tables, Stream stream) {
  with_groups(w, [&](const auto& groups) {
    using Groups = std::decay_t<decltype(groups)>;
    for_tokens(product, groups, [&](auto at_once, dim3 grid) {
      launch(thin_product_4bit<decltype(at_once)::value, Groups>, grid, kThinThreads, stream,
             product, groups, tables);
    });
  });
}

void launch_thin_product_8bit(const ThinProduct& product, const EightBitView& w, Stream stream) {
  launch_of(product, w, stream);
}

void launch_thin_product_fp8_blocks(const ThinProduct& product, const Fp8BlockView& w,
                                    Stream stream) {
  launch_of(product, w, stream);
}

void launch_thin_product_int4_groups(const ThinProduct& product, const Int4GroupView& w,
                                     Stream stream) {
  launch_of(product, w, stream);
}

void launch_thin_product_ggml(const ThinProduct& product, weights::GgmlType ggml_type,
                              const uint8_t* blocks, int64_t rows, int64_t columns, Stream stream) {
  ggml::with_format(ggml_type, [&](auto format) {
    launch_of(product, GgmlView<decltype(format)>{blocks, rows, columns}, stream);
  });
}

const Provided kLaunchers[] = {{"launch_thin_product_4bit", launch_thin_product_4bit},
                               {"launch_thin_product_8bit", launch_thin_product_8bit},
                               {"launch_thin_product_fp8_blocks", launch_thin_product_fp8_blocks},
                               {"launch_thin_product_int4_groups", launch_thin_product_int4_groups},
                               {"launch_thin_product_ggml", launch_thin_product_ggml}};

}  // namespace sftrun::kernels::cuda
