#pragma once

#include "sftrun/layers/linear.h"

/// Embedding table with an optional adapter, as in peft (tuners/lora/layer.py, Embedding):
///     y = scale * (W[token] + s * A[:, token]^T B^T),   s the adapter's scale. No dropout.
namespace sftrun::layers {

struct Embedding {
  std::string name;   ///< HF name: "model.embed_tokens"
  at::Tensor weight;  ///< [vocab, hidden] in the compute dtype; a view of its parameter if trained
  /// Replaces `weight`, which is then undefined.
  std::optional<kernels::QuantizedMatrix> quantized;
  Parameter* parameter = nullptr;
  /// Tensor parallelism: this rank has the rows of the tokens from `first_token`.
  int64_t first_token = 0;
  const TensorRanks* ranks = nullptr;  ///< null: it has all rows
  double scale = 1;  ///< multiplies the output, including the adapter's part (Gemma, Granite)
  /// A [r, vocab], B [hidden, r]. DoRA magnitudes are [hidden], relative to the column norms of
  /// W + s (B A)^T.
  std::optional<LoraAdapter> lora;

  kernels::Matrix matrix() const {
    return quantized ? kernels::Matrix(*quantized) : kernels::Matrix(weight);
  }
  bool trains() const { return parameter != nullptr || lora.has_value(); }
};

/// @param tokens [T] int64   @param adapters false: the table alone   @return [T, hidden]
at::Tensor embedding_forward(const Embedding& embedding, const at::Tensor& tokens,
                             at::ScalarType dtype, bool adapters = true);
/// Adds to the parameters' gradients. Saves nothing in the forward pass: looks rows up again.
/// @param grad gradient of the output [T, hidden]
void embedding_backward(const Embedding& embedding, const at::Tensor& tokens,
                        const at::Tensor& grad);

}  // namespace sftrun::layers
