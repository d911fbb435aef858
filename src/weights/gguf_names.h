#pragma once

#include <cstdint>
#include <string>

namespace sftrun::weights {

/// llama.cpp's name of a Llama tensor: "model.layers.3.self_attn.q_proj.weight" is
/// "blk.3.attn_q.weight".
/// @pre `hf_name` is one that `tensor_specs` gives
std::string gguf_name(const std::string& hf_name);

/// Whether llama.cpp stores the rows of this tensor with the two halves of each head interleaved,
/// for its rotation of neighbouring pairs: weights and biases of q and k.
bool has_permuted_rows(const std::string& hf_name);

/// The row of the file that is row `row` in Hugging Face's order.
constexpr int64_t stored_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, within = row % head_dim, half = head_dim / 2;
  return head * head_dim + 2 * (within % half) + within / half;
}

}  // namespace sftrun::weights
