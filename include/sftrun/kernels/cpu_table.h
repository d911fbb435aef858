#pragma once

#include <cstddef>
#include <cstdint>

/// CPU kernels as plain functions over rows, without LibTorch. src/kernels/cpu/kernels_isa.cpp is
/// compiled once per instruction set and fills one table each; `cpu_kernels()` returns the best
/// table that this processor supports.
///
/// All kernels are single-threaded and allocate no tensors. Callers split rows over threads, so
/// results do not depend on the number of threads. T is float, or uint16_t that holds bfloat16.
/// Arithmetic is in fp32.
namespace sftrun::kernels {

/// Identifies a token independently of packing and rank: key of the counter-based random numbers.
struct TokenKey {
  uint32_t document = 0;  ///< index of the document in its global batch
  uint32_t position = 0;  ///< position in the document
};

struct DropoutParams {
  uint64_t seed = 0;
  uint32_t step = 0;       ///< optimizer step
  uint32_t module = 0;     ///< index of the module in the model
  uint32_t threshold = 0;  ///< of 65536: a channel is dropped if its 16 random bits are below
  float scale = 1;         ///< 1 / (1 - threshold / 65536)
};

/// Parameters of NEFTune noise (noise.h).
struct NoiseParams {
  uint64_t seed = 0;
  uint32_t step = 0;        ///< optimizer step
  double scaled_alpha = 0;  ///< alpha times the embedding's `scale`
};

struct AdamWParams {
  float learning_rate, beta1, beta2, epsilon, weight_decay;
  float bias_correction1, sqrt_bias_correction2;  ///< 1 - beta1^t, sqrt(1 - beta2^t)
  float grad_scale;  ///< gradient clipping factor, applied when the gradient is read
  /// Computed in fp64, then rounded: 1 - 0.999F in fp32 has a relative error of 1.3e-5.
  float one_minus_beta1, one_minus_beta2;
};

/// Decides on the device whether an update is applied, and with which gradient factor. The AdamW
/// kernels read it there, so the host need not wait.
struct UpdateGate {
  float grad_scale;  ///< replaces `AdamWParams::grad_scale`
  int32_t is_open;   ///< 0: weights and moments stay unchanged
};

/// Scalars of one step of 8-bit AdamW, each rounded once from fp64, as in bitsandbytes.
struct AdamW8bitParams {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  float step_size;  ///< -learning_rate / (1 - beta1^t)
  float decay;      ///< 1 - learning_rate * weight_decay
  float sqrt_bias_correction2;
  float grad_scale;
};

inline constexpr int64_t kStateBlock = 256;    ///< values of a moment per block (one absmax each)
inline constexpr int64_t kStateSteps = 65536;  ///< size of DynamicMap::codes
inline constexpr int64_t kStateTree = 384;     ///< size of DynamicMap::tree

/// Raw pointers to the tensors of a DynamicMap.
struct StateMap {
  const float* values;   ///< [256]
  const uint8_t* codes;  ///< [kStateSteps]; CPU only
  const uint16_t* tree;  ///< [kStateTree]
};

/// Quantised moments of one block: value = values[code] * absmax.
struct StateBlock {
  uint8_t *exp_avg, *exp_avg_sq;
  float *exp_avg_absmax, *exp_avg_sq_absmax;
};

/// Activation of a gated MLP: silu; gelu in its tanh approximation (arXiv:1606.08415); or
/// x sigmoid(alpha x) of clamped inputs (gpt-oss).
enum class Activation { kSilu, kGeluTanh, kClampedSwiglu };

/// h = activation(gate) * up. kClampedSwiglu: gate is clamped to at most `limit` and up to
/// [-limit, limit]; then h = gate sigmoid(alpha gate) * (up + 1).
struct Gating {
  Activation activation = Activation::kSilu;
  float alpha = 1.702F, limit = 7.0F;  ///< kClampedSwiglu only
  // NOLINTNEXTLINE(google-explicit-constructor): the other activations have no parameters
  constexpr Gating(Activation kind = Activation::kSilu) : activation(kind) {}
  constexpr Gating(Activation kind, float alpha_of, float limit_of)
      : activation(kind), alpha(alpha_of), limit(limit_of) {}
};

/// Number format of an 8-bit code (QuantFormat::kFp8, kInt8).
enum class EightBits { kE4m3, kInt8 };

/// Number of queries and of keys in one tile of CPU attention.
inline constexpr int64_t kAttentionTile = 64;

/// Mask of one tile: query q attends to the keys [q + first, q + last), clipped to the tile.
struct TileMask {
  int64_t first = 0, last = 0;
};
/// Mask of a tile with queries that see keys after their own: query q attends to the keys
/// [q + first, ends[q]), clipped to the tile.
struct TileEnds {
  int64_t first = 0;
  const int32_t* ends = nullptr;  ///< [kAttentionTile], from the tile's first key
};

/// The steps of tiled attention between its matrix products; contracts in
/// src/kernels/attention/attention_cpu.inl.
template <typename T>
struct AttentionKernels {
  void (*pack_rows)(const T* src, int64_t stride, int64_t valid, int64_t depth, T* out);
  void (*pack_transposed)(const T* src, int64_t stride, int64_t valid, int64_t depth, T* out);
  void (*pair_rows)(const T* in, int64_t rows, int64_t columns, T* out);
  void (*cap_scores)(float* scores, float scale, float cap);
  void (*softmax_tile)(const float* scores, float scale, TileMask mask, int64_t depth,
                       float* maximum, float* sum, float* acc, T* p);
  void (*softmax_tile_backward)(const float* scores, const float* dp, const float* lse,
                                const float* delta, float scale, float cap, TileMask mask, T* p,
                                T* ds);
  void (*softmax_tile_ahead)(const float* scores, float scale, TileEnds mask, int64_t depth,
                             float* maximum, float* sum, float* acc, T* p);
  void (*softmax_tile_ahead_backward)(const float* scores, const float* dp, const float* lse,
                                      const float* delta, float scale, float cap, TileEnds mask,
                                      T* p, T* ds);
  void (*finish_rows)(const float* acc, const float* maximum, const float* sum, int64_t valid,
                      int64_t depth, T* out, int64_t stride, float* lse);
  void (*row_dots)(const T* d_out, const T* out, int64_t stride, int64_t valid, int64_t depth,
                   float* delta);
  void (*unpack_transposed)(const float* acc, int64_t valid, int64_t depth, T* out, int64_t stride);
  void (*sum_rows)(const float* acc, int64_t count, int64_t gap, int64_t valid, int64_t depth,
                   T* out, int64_t stride);
  void (*attend_cached)(const T* q, int64_t group, const T* keys, const T* values, int64_t length,
                        int64_t depth, float scale, float cap, const float* sinks, float* room,
                        T* out);
};

/// Products of blocks in fp32; null without AVX2. Contracts in
/// src/kernels/matmul/block_product_cpu.inl.
template <typename T>
struct BlockKernels {
  void (*multiply)(int64_t m, int64_t n, int64_t k, bool add, const T* a, int64_t a_stride,
                   const T* b, float* c);
  void (*multiply_few)(int64_t m, int64_t columns, int64_t k, bool add, const T* a,
                       int64_t a_stride, const T* w, int64_t w_stride, float* c, int64_t c_stride);
  void (*multiply_few_transposed)(int64_t m, int64_t columns, int64_t k, bool add, const T* a,
                                  int64_t a_stride, const T* w, int64_t w_stride, float* c,
                                  int64_t c_stride);
};

/// Packing, products and epilogue of tiled products; contracts in
/// src/kernels/matmul/matmul_cpu.inl.
template <typename T>
struct MatmulKernels {
  void (*pack_panel)(const T* w, int64_t stride, int64_t valid, int64_t width, int64_t depth,
                     T* panel);
  void (*pack_panel_transposed)(const T* w, int64_t stride, int64_t valid, int64_t width,
                                int64_t depth, T* panel);
  void (*finish_product)(const float* acc, int64_t width, int64_t rows, int64_t columns,
                         const T* residual, const T* bias, T* out, int64_t stride);
  void (*add_thin_product)(const T* thin, int64_t thin_stride, int64_t thin_columns, const T* wide,
                           int64_t wide_stride, int64_t wide_columns, int64_t rows, float* out,
                           int64_t out_thin_stride, int64_t out_wide_stride);
  BlockKernels<T> blocks;
};

/// One row of a matrix quantised to 4 bits.
struct FourBitRow {
  const uint8_t* packed;
  int64_t first;  ///< index of the row's first value within its block
  int64_t block_size;
  const float* table;
  const float* scales;  ///< block scales: of the row's first block and those after it
  const uint8_t* zeros =
      nullptr;  ///< subtracted from the table's values, for each block; null: none
};

/// One row of a matrix quantised to 8 bits.
struct EightBitRow {
  EightBits form;
  const uint8_t* codes;
  const float* scales;  ///< of each `block_size` values
  int64_t block_size;   ///< the row's length, if it has one scale
};

/// Rows of a dense matrix, `stride` values apart.
template <typename T>
struct DenseRows {
  const T* first;
  int64_t stride, count;
};

/// out[t] = w . x[t] for one row w of n values and x fp32 [tokens, n]. For quantised rows n,
/// `first` and a `block_size` below n are multiples of 32. See
/// src/kernels/quant/dots_cpu.inl.
struct DotKernels {
  /// Reorders x into the layout that `dot_4bit` reads.
  void (*split_pairs)(const float* x, int64_t n, float* out);
  void (*dot_4bit)(const FourBitRow& row, int64_t n, const float* x, int64_t tokens, float* out);
  void (*dot_8bit)(const EightBitRow& row, int64_t n, const float* x, int64_t tokens, float* out);
  void (*dot_ggml)(uint32_t type, const uint8_t* blocks, int64_t n, const float* x, int64_t tokens,
                   float* out);
  /// out[t * out_stride + r] = w[r] . x[t] for some rows of a dense matrix, and any n.
  void (*dense_rows_fp32)(const DenseRows<float>& w, int64_t n, const float* x, int64_t tokens,
                          float* out, int64_t out_stride);
  void (*dense_rows_bf16)(const DenseRows<uint16_t>& w, int64_t n, const float* x, int64_t tokens,
                          float* out, int64_t out_stride);
  int64_t max_dense_tokens;  ///< for which `dense_rows` is faster than tiles or a library
  /// out[t] += values . x[t] over `count` consecutive values; rows of x are `n` apart.
  void (*add_dots)(const float* values, int64_t count, int64_t n, const float* x, int64_t tokens,
                   float* out);
};

template <typename T>
struct RowKernels {
  /// y = w * x * rstd, rstd = 1 / sqrt(mean(x^2) + eps), w = offset + weight (RMSNorm,
  /// arXiv:1910.07467)
  void (*rms_norm_forward)(const T* x, const T* weight, T* y, float* rstd, int64_t rows,
                           int64_t hidden, float eps, float offset);
  /// dx = residual + rstd * (w dy - x rstd^2 mean(w dy x)); residual may be null
  void (*rms_norm_backward)(const T* dy, const T* x, const T* weight, const float* rstd,
                            const T* residual, T* dx, int64_t rows, int64_t hidden, float offset);
  /// RoPE in place on the first `rotary_dim` channels of each head, whose two halves form the pairs
  /// (a, b) -> (a cos - b sin, b cos + a sin), with sin times `sign` (-1: inverse).
  /// cos, sin [rows, rotary_dim / 2].
  void (*rope)(T* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
               int64_t head_dim, int64_t rotary_dim, float sign);
  /// h = activation(gate) * up
  void (*gated_forward)(Gating gating, const T* gate, const T* up, T* h, int64_t n);
  /// Overwrites gate and up with their gradients.
  void (*gated_backward)(Gating gating, const T* dh, T* gate, T* up, int64_t n);
  /// y = x * mask * scale; the mask depends only on (seed, step, module, token, channel).
  void (*dropout)(const T* x, T* y, const TokenKey* tokens, int64_t rows, int64_t channels,
                  DropoutParams params);
  /// losses[i] = -log softmax(z)[labels[i]], 0 for a negative label, where z = logits[i], or
  /// cap * tanh(logits[i] / cap) if cap > 0. Overwrites logits with grad_scale * row_factors[i] *
  /// their gradients. @param row_factors null: 1 for all rows
  void (*cross_entropy)(T* logits, const int32_t* labels, float* losses, int64_t rows,
                        int64_t vocab, float cap, float grad_scale, const float* row_factors);
  /// The losses only; logits are not changed.
  void (*cross_entropy_loss)(const T* logits, const int32_t* labels, float* losses, int64_t rows,
                             int64_t vocab, float cap);
  AttentionKernels<T> attention;
  MatmulKernels<T> matmul;
  /// Dequantises values [first, first + n) of 4-bit blocks; see src/kernels/quant/quant_cpu.inl.
  void (*dequantize_4bit)(const uint8_t* packed, int64_t first, int64_t n, int64_t block_size,
                          const float* table, const float* absmax, T* out);
  /// Dequantises values [first, first + n) of a row of ggml blocks; see
  /// sftrun/weights/ggml_blocks.inl.   @param type a weights::GgmlType that has blocks
  void (*dequantize_ggml)(uint32_t type, const uint8_t* blocks, int64_t first, int64_t n, T* out);
  /// Dequantises one row; see src/kernels/quant/eight_bits_cpu.inl.
  void (*dequantize_8bit)(EightBits form, const uint8_t* codes, int64_t n, float scale, T* out);
  /// Rounds one row to e4m3. `out` receives the values of the codes; returns the row's scale. See
  /// src/kernels/quant/round_e4m3_cpu.inl.
  float (*round_row_e4m3)(const T* x, const float* gains, int64_t n, T* out);
  float (*round_row_e4m3_to_bf16)(const T* x, const float* gains, int64_t n, uint16_t* out);
};

struct CpuKernels {
  const char* isa;
  RowKernels<float> f32;
  RowKernels<uint16_t> bf16;
  /// torch.optim.AdamW on n elements; also updates `compute_copy` (bfloat16) if it is not null.
  void (*adamw)(float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                uint16_t* compute_copy, int64_t n, AdamWParams params);
  double (*sum_of_squares)(const float* x, int64_t n);
  /// bitsandbytes' 8-bit AdamW on one block of n <= kStateBlock elements.
  void (*adamw_8bit)(float* param, const float* grad, const StateBlock& state,
                     uint16_t* compute_copy, int64_t n, const StateMap& exp_avg_map,
                     const StateMap& exp_avg_sq_map, const AdamW8bitParams& params);
  /// Codes and absmax of whole blocks; see src/kernels/quant/quant_cpu.inl.
  void (*quantize_4bit)(const float* values, int64_t n, int64_t block_size, const float* bounds,
                        const uint8_t* order, uint8_t* packed, float* absmax);
  /// Quantises one row; returns its scale. See src/kernels/quant/eight_bits_cpu.inl.
  float (*quantize_row_e4m3)(const float* x, int64_t n, uint8_t* codes);
  float (*quantize_row_int8)(const float* x, int64_t n, uint8_t* codes);
  DotKernels dots;
  /// memcpy with non-temporal stores where the instruction set has them. The caller must issue a
  /// store fence before another thread reads the data.
  void (*stream_copy)(void* to, const void* from, size_t bytes);
};

/// The table for this processor: avx512, avx2 or generic. The environment variable SFTRUN_ISA
/// selects a lesser one (for tests).
const CpuKernels& cpu_kernels();
/// The table of that name; null if this processor does not support it.
const CpuKernels* cpu_kernels_by_name(const char* isa);

}  // namespace sftrun::kernels
