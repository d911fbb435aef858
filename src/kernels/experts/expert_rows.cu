#include <initializer_list>

#include "cuda/device.cuh"
#include "experts/expert_rows_launch.h"

// Row operations before and after the experts' products; each kernel is a single pass.
namespace sftrun::kernels::cuda {
namespace {

constexpr int64_t kMaxBlocksBeside = 65535;  // limit of gridDim.y

unsigned blocks(int64_t n) {
  return static_cast<unsigned>(n);
}
unsigned blocks_of_warps(int64_t rows) {
  return blocks((rows + kWarps - 1) / kWarps);
}
__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
}
__device__ __forceinline__ int lane_of_thread() {
  return static_cast<int>(threadIdx.x % 32);
}
/// Rounded to type T.
template <typename T>
__device__ __forceinline__ float rounded(float value) {
  T held;
  store(&held, value);
  return load(&held);
}

/// @tparam Word memory word; a row consists of `columns` of them
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    spread_rows(const Word* x, Word* y, const int32_t* rows, int64_t top_k, int64_t columns) {
  const int64_t token = blockIdx.x;
  for (int64_t column = threadIdx.x; column < columns; column += kThreads) {
    const Word word = x[token * columns + column];
    for (int64_t place = 0; place < top_k; ++place)
      y[rows[token * top_k + place] * columns + column] = word;
  }
}

/// `RowSums` with typed pointers.
template <typename T>
struct TypedSums {
  const T* x;
  const float* weights;
  const T* residual;
  const T* beside;
  const T* logits;
  T* y;
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) sum_rows(TypedSums<T> sums, TokenRows token_rows) {
  const int64_t token = blockIdx.x, top_k = token_rows.top_k;
  const float share = sums.logits == nullptr ? 1.0F : sigmoid(load(sums.logits + token));
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kWidth; column < token_rows.columns;
       column += kThreads * kWidth) {
    float sum[kWidth] = {}, values[kWidth];
#pragma unroll 4
    for (int64_t place = 0; place < top_k; ++place) {
      const int64_t slot = token * top_k + place;
      const float weight = sums.weights == nullptr ? 1.0F : sums.weights[slot];
      load_values<kWidth>(sums.x + token_rows.rows[slot] * token_rows.columns + column, values);
      for (int k = 0; k < kWidth; ++k) sum[k] = fmaf(weight, values[k], sum[k]);
    }
    const int64_t at = token * token_rows.columns + column;
    if (sums.beside != nullptr) {
      load_values<kWidth>(sums.beside + at, values);
      for (int k = 0; k < kWidth; ++k) sum[k] = fmaf(share, values[k], sum[k]);
    }
    if (sums.residual != nullptr) {
      load_values<kWidth>(sums.residual + at, values);
      for (int k = 0; k < kWidth; ++k) sum[k] += values[k];
    }
    store_values<kWidth>(sums.y + at, sum);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_expert_bias(T* y, const T* bias, const int32_t* experts, int64_t columns) {
  const int64_t row = blockIdx.x;
  T* own = y + row * columns;
  const T* of_expert = bias + experts[row] * columns;
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kWidth; column < columns;
       column += kThreads * kWidth) {
    float values[kWidth], biases[kWidth];
    load_values<kWidth>(own + column, values);
    load_values<kWidth>(of_expert + column, biases);
    for (int k = 0; k < kWidth; ++k) values[k] += biases[k];
    store_values<kWidth>(own + column, values);
  }
}

/// A block processes 32 columns of an expert; each of its 8 warps takes every 8th row.
template <typename T>
__global__ void __launch_bounds__(kThreads) add_expert_sums(ExpertSums sums, const T* x) {
  __shared__ float of_warp[kWarps][32];
  const int lane = lane_of_thread(), warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  const bool has_column = column < sums.columns;
  for (int64_t expert = blockIdx.y; expert < sums.experts; expert += gridDim.y) {
    const int64_t begin = expert == 0 ? 0 : sums.ends[expert - 1], end = sums.ends[expert];
    float sum = 0;
    for (int64_t row = begin + warp; row < end && has_column; row += kWarps) {
      const float weight = sums.weights == nullptr ? 1.0F : sums.weights[sums.slots[row]];
      sum = fmaf(weight, load(x + row * sums.columns + column), sum);
    }
    __syncthreads();  // the previous expert's sums have been read
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || !has_column || begin == end) continue;
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += of_warp[w][lane];
    sums.out[expert * sums.columns + column] += total;
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_expert_products(ExpertProducts products, const T* from) {
  // 32-bit division is faster; a matrix has fewer than 2^31 elements.
  const auto columns = static_cast<uint32_t>(products.columns),
             n = static_cast<uint32_t>(products.rows) * columns,
             stride = gridDim.x * kThreads * kWidth;
  for (int64_t expert = blockIdx.y; expert < products.experts; expert += gridDim.y) {
    const int32_t begin = expert == 0 ? 0 : products.ends[expert - 1];
    if (products.ends[expert] == begin) continue;
    float* out = products.out + expert * static_cast<int64_t>(n);
    const T* own = from + expert * products.matrix_stride;
    for (uint32_t i = (blockIdx.x * kThreads + threadIdx.x) * kWidth; i < n; i += stride) {
      float sums[kWidth], values[kWidth];
      load_values<kWidth>(out + i, sums);
      load_values<kWidth>(own + i / columns * products.row_stride + i % columns, values);
      for (int k = 0; k < kWidth; ++k) sums[k] += values[k];
      store_values<kWidth>(out + i, sums);
    }
  }
}

/// One warp per row.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    weighted_gated_backward(Gating gating, WeightedGated gated_rows, const T* dh, T* gate_up,
                            T* weighted_h) {
  const int64_t row = row_of_warp(), inner = gated_rows.inner;
  if (row >= gated_rows.rows) return;  // uniform across the warp
  const int32_t slot = gated_rows.slots[row];
  const float weight = gated_rows.weights[slot];
  T* gate = gate_up + row * 2 * inner;
  T* up = gate + inner;
  float sum = 0;
  for (int64_t column = lane_of_thread() * kWidth; column < inner; column += 32 * kWidth) {
    float grads[kWidth], gates[kWidth], ups[kWidth], outputs[kWidth];
    load_values<kWidth>(dh + row * inner + column, grads);
    load_values<kWidth>(gate + column, gates);
    load_values<kWidth>(up + column, ups);
    for (int k = 0; k < kWidth; ++k) {
      const float h = rounded<T>(gated(gating, gates[k], ups[k]));
      sum = fmaf(h, grads[k], sum);
      outputs[k] = h * weight;
      const Pair gradient = gated_gradient(gating, grads[k] * weight, gates[k], ups[k]);
      gates[k] = gradient.first;
      ups[k] = gradient.second;
    }
    store_values<kWidth>(gate + column, gates);
    store_values<kWidth>(up + column, ups);
    if (weighted_h != nullptr) store_values<kWidth>(weighted_h + row * inner + column, outputs);
  }
  if (gated_rows.bias != nullptr) {
    const int64_t hidden = gated_rows.hidden;
    const T* bias = static_cast<const T*>(gated_rows.bias) + gated_rows.experts[row] * hidden;
    const T* dy = static_cast<const T*>(gated_rows.dy) + row * hidden;
    for (int64_t column = lane_of_thread() * kWidth; column < hidden; column += 32 * kWidth) {
      float biases[kWidth], grads[kWidth];
      load_values<kWidth>(bias + column, biases);
      load_values<kWidth>(dy + column, grads);
      for (int k = 0; k < kWidth; ++k) sum = fmaf(biases[k], grads[k], sum);
    }
  }
  sum = lanes_sum(sum, 32);
  if (lane_of_thread() == 0) gated_rows.d_weights[slot] = sum;
}

/// One warp per token.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gated_output_backward(GatedOutput gated_rows, const T* dy, const T* output, T* d_output) {
  const int64_t token = row_of_warp(), first = token * gated_rows.columns;
  if (token >= gated_rows.tokens) return;
  const float share = sigmoid(load(static_cast<const T*>(gated_rows.logits) + token));
  float sum = 0;
  for (int64_t column = lane_of_thread() * kWidth; column < gated_rows.columns;
       column += 32 * kWidth) {
    float grads[kWidth], outputs[kWidth];
    load_values<kWidth>(dy + first + column, grads);
    load_values<kWidth>(output + first + column, outputs);
    for (int k = 0; k < kWidth; ++k) {
      sum = fmaf(grads[k], outputs[k], sum);
      grads[k] *= share;
    }
    store_values<kWidth>(d_output + first + column, grads);
  }
  sum = lanes_sum(sum, 32);
  if (lane_of_thread() == 0)
    store(static_cast<T*>(gated_rows.d_logits) + token, sum * share * (1.0F - share));
}

/// Calls body(typed null pointer, width as a type).
template <typename Body>
void for_type_and_width(Type type, bool is_in_eights, Body&& body) {
  for_type(type,
           [&](auto* null) { with_width(is_in_eights, [&](auto width) { body(null, width); }); });
}

template <typename Word>
void launch_spread_words(const void* x, void* y, const TokenRows& token_rows, int64_t words,
                         Stream stream) {
  launch(spread_rows<Word>, blocks(token_rows.tokens), kThreads, stream,
         static_cast<const Word*>(x), static_cast<Word*>(y), token_rows.rows, token_rows.top_k,
         words);
}

}  // namespace

void launch_spread_rows(Type type, const void* x, void* y, const TokenRows& token_rows,
                        Stream stream) {
  if (token_rows.tokens == 0 || token_rows.columns == 0) return;
  const int64_t size = type == Type::kFloat32 ? 4 : 2;
  if (in_eights(token_rows.columns, {x, y}))
    launch_spread_words<uint4>(x, y, token_rows, token_rows.columns * size / 16, stream);
  else if (type == Type::kFloat32)
    launch_spread_words<uint32_t>(x, y, token_rows, token_rows.columns, stream);
  else
    launch_spread_words<uint16_t>(x, y, token_rows, token_rows.columns, stream);
}

void launch_sum_rows(Type type, const RowSums& sums, const TokenRows& token_rows, Stream stream) {
  if (token_rows.tokens == 0 || token_rows.columns == 0) return;
  for_type_and_width(
      type, in_eights(token_rows.columns, {sums.x, sums.residual, sums.beside, sums.y}),
      [&](auto* null, auto width) {
        using T = Element<decltype(null)>;
        launch(sum_rows<T, decltype(width)::value>, blocks(token_rows.tokens), kThreads, stream,
               {static_cast<const T*>(sums.x), sums.weights, static_cast<const T*>(sums.residual),
                static_cast<const T*>(sums.beside), static_cast<const T*>(sums.logits),
                static_cast<T*>(sums.y)},
               token_rows);
      });
}

void launch_add_expert_bias(Type type, void* y, const void* bias, const int32_t* experts,
                            int64_t rows, int64_t columns, Stream stream) {
  if (rows == 0 || columns == 0) return;
  for_type_and_width(type, in_eights(columns, {y, bias}), [&](auto* null, auto width) {
    using T = Element<decltype(null)>;
    launch(add_expert_bias<T, decltype(width)::value>, blocks(rows), kThreads, stream,
           static_cast<T*>(y), static_cast<const T*>(bias), experts, columns);
  });
}

void launch_add_expert_sums(Type type, const ExpertSums& sums, Stream stream) {
  if (sums.experts == 0 || sums.columns == 0) return;
  const int64_t experts = sums.experts < kMaxBlocksBeside ? sums.experts : kMaxBlocksBeside;
  const dim3 grid(blocks((sums.columns + 31) / 32), blocks(experts));
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(add_expert_sums<T>, grid, kThreads, stream, sums, static_cast<const T*>(sums.x));
  });
}

void launch_add_expert_products(Type type, const ExpertProducts& products, Stream stream) {
  const int64_t n = products.rows * products.columns;
  if (products.experts == 0 || n == 0) return;
  const int64_t experts = products.experts < kMaxBlocksBeside ? products.experts : kMaxBlocksBeside;
  const bool is_in_eights = in_eights(products.columns, {products.products, products.out}) &&
                            products.row_stride % 8 == 0 && products.matrix_stride % 8 == 0;
  for_type_and_width(type, is_in_eights, [&](auto* null, auto width) {
    using T = Element<decltype(null)>;
    constexpr int kWidth = decltype(width)::value;
    launch(add_expert_products<T, kWidth>, dim3(grid_of(n / kWidth), blocks(experts)), kThreads,
           stream, products, static_cast<const T*>(products.products));
  });
}

void launch_weighted_gated_backward(Type type, Gating gating, const WeightedGated& gated,
                                    Stream stream) {
  if (gated.rows == 0) return;
  const bool is_in_eights =
      in_eights(gated.inner, {gated.dh, gated.gate_up, gated.weighted_h}) &&
      (gated.bias == nullptr || in_eights(gated.hidden, {gated.bias, gated.dy}));
  for_type_and_width(type, is_in_eights, [&](auto* null, auto width) {
    using T = Element<decltype(null)>;
    launch(weighted_gated_backward<T, decltype(width)::value>, blocks_of_warps(gated.rows),
           kThreads, stream, gating, gated, static_cast<const T*>(gated.dh),
           static_cast<T*>(gated.gate_up), static_cast<T*>(gated.weighted_h));
  });
}

void launch_gated_output_backward(Type type, const GatedOutput& gated, Stream stream) {
  if (gated.tokens == 0) return;
  for_type_and_width(type, in_eights(gated.columns, {gated.dy, gated.output, gated.d_output}),
                     [&](auto* null, auto width) {
                       using T = Element<decltype(null)>;
                       launch(gated_output_backward<T, decltype(width)::value>,
                              blocks_of_warps(gated.tokens), kThreads, stream, gated,
                              static_cast<const T*>(gated.dy), static_cast<const T*>(gated.output),
                              static_cast<T*>(gated.d_output));
                     });
}

const Provided kLaunchers[] = {{"launch_spread_rows", launch_spread_rows},
                               {"launch_sum_rows", launch_sum_rows},
                               {"launch_add_expert_bias", launch_add_expert_bias},
                               {"launch_add_expert_sums", launch_add_expert_sums},
                               {"launch_add_expert_products", launch_add_expert_products},
                               {"launch_weighted_gated_backward", launch_weighted_gated_backward},
                               {"launch_gated_output_backward", launch_gated_output_backward}};

}  // namespace sftrun::kernels::cuda
