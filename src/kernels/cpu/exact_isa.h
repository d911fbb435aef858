#pragma once

// Declarations of the kernels of exact_isa.cpp, which is compiled with -ffp-contract=off. To be
// included inside the namespace of one instruction set.

template <typename T>
void dequantize_ggml(uint32_t type, const uint8_t* blocks, int64_t first, int64_t n, T* out);
template <typename T>
void dequantize_8bit(EightBits form, const uint8_t* codes, int64_t n, float factor, T* out);
template <typename T, typename Code>
float round_row_e4m3(const T* x, const float* gains, int64_t n, Code* out);
float quantize_row_e4m3(const float* x, int64_t n, uint8_t* codes);
float quantize_row_int8(const float* x, int64_t n, uint8_t* codes);
void split_pairs(const float* x, int64_t n, float* out);
void dot_4bit(const FourBitRow& row, int64_t n, const float* x, int64_t tokens, float* out);
void dot_8bit(const EightBitRow& row, int64_t n, const float* x, int64_t tokens, float* out);
void dot_ggml(uint32_t type, const uint8_t* blocks, int64_t n, const float* x, int64_t tokens,
              float* out);
void dense_rows_fp32(const DenseRows<float>& w, int64_t n, const float* x, int64_t tokens,
                     float* out, int64_t out_stride);
void dense_rows_bf16(const DenseRows<uint16_t>& w, int64_t n, const float* x, int64_t tokens,
                     float* out, int64_t out_stride);
void add_dots(const float* values, int64_t count, int64_t n, const float* x, int64_t tokens,
              float* out);
void adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
           uint16_t* compute_copy, int64_t n, AdamWParams a);
void adamw_8bit(float* param, const float* grad, const StateBlock& state, uint16_t* compute_copy,
                int64_t n, const StateMap& exp_avg_map, const StateMap& exp_avg_sq_map,
                const AdamW8bitParams& a);
