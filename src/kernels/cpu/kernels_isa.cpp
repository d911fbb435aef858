// Compiled once per instruction set; SFTRUN_ISA is the namespace.
#include "sftrun/kernels/cpu_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace sftrun::kernels::SFTRUN_ISA {

#include "cpu/exact_isa.h"

namespace {

// Used by the kernels below.
#include "cpu/math.h"
#include "cpu/sixteen.h"
#include "cpu/stream_cpu.inl"

#include "adamw/sum_of_squares_cpu.inl"
#include "attention/attention_cpu.inl"
#include "cross_entropy/cross_entropy_cpu.inl"
#include "dropout/dropout_cpu.inl"
#include "gated/gated_cpu.inl"
#include "matmul/transpose_vectors.inl"

#include "heads/rope_cpu.inl"
#include "matmul/matmul_cpu.inl"
#include "quant/quant_cpu.inl"
#include "rms_norm/rms_norm_cpu.inl"

// Uses the packing of matmul_cpu.inl.
#include "matmul/block_product_cpu.inl"

#ifdef __AVX2__
template <typename T>
constexpr BlockKernels<T> kBlockKernels = {multiply_block<T>, multiply_few<T>,
                                           multiply_few_transposed<T>};
#else
template <typename T>
constexpr BlockKernels<T> kBlockKernels = {};
#endif

template <typename T>
constexpr RowKernels<T> kRowKernels = {
    rms_norm_forward<T>,
    rms_norm_backward<T>,
    rope<T>,
    gated_forward<T>,
    gated_backward<T>,
    dropout<T>,
    cross_entropy<T>,
    cross_entropy_loss<T>,
    {pack_rows<T>, pack_transposed<T>, pair_rows<T>, cap_scores, softmax_tile<T, TileMask>,
     softmax_tile_backward<T, TileMask>, softmax_tile<T, TileEnds>,
     softmax_tile_backward<T, TileEnds>, finish_rows<T>, row_dots<T>, unpack_transposed<T>,
     sum_rows<T>, attend_cached<T>},
    {pack_panel, pack_panel_transposed, finish_product<T>, add_thin_product<T>, kBlockKernels<T>},
    dequantize_4bit<T>,
    dequantize_ggml<T>,
    dequantize_8bit<T>,
    round_row_e4m3<T, T>,
    round_row_e4m3<T, uint16_t>,
};

#ifdef __AVX512F__
constexpr int64_t kMaxDenseTokens = 63;
#elif defined(__AVX2__)
constexpr int64_t kMaxDenseTokens = 12;  // with more, tiles are faster
#else
constexpr int64_t kMaxDenseTokens = 4;  // with more, libraries are faster
#endif

#define SFTRUN_NAME_OF(x) #x
#define SFTRUN_STRING(x) SFTRUN_NAME_OF(x)

}  // namespace

extern const CpuKernels kTable;
const CpuKernels kTable = {SFTRUN_STRING(SFTRUN_ISA),
                           kRowKernels<float>,
                           kRowKernels<uint16_t>,
                           adamw,
                           sum_of_squares,
                           adamw_8bit,
                           quantize_4bit,
                           quantize_row_e4m3,
                           quantize_row_int8,
                           {split_pairs, dot_4bit, dot_8bit, dot_ggml, dense_rows_fp32,
                            dense_rows_bf16, kMaxDenseTokens, add_dots},
                           stream_copy};

}  // namespace sftrun::kernels::SFTRUN_ISA
