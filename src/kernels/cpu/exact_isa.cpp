// Compiled once for each instruction set, as kernels_isa.cpp, but without contraction to fused
// multiply-adds: what is fused says so, and results are bit-equal to a reference.
#include "sftrun/kernels/cpu_table.h"

#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace sftrun::kernels::SFTRUN_ISA {
namespace {

#include "cpu/math.h"

}  // namespace

void adamw_8bit(float* param, const float* grad, const StateBlock& state, uint16_t* compute_copy,
                int64_t n, const StateMap& exp_avg_map, const StateMap& exp_avg_sq_map,
                const AdamW8bitParams& a);

#include "adamw/adamw_8bit_cpu.inl"

}  // namespace sftrun::kernels::SFTRUN_ISA
