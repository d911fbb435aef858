#pragma once

#include "sftrun/kernels/linear.h"

/// The table of tokens' vectors, with an update of low rank as peft has one (tuners/lora/layer.py,
/// Embedding): y = scale * (W[token] + s * A[:, token]^T B^T). No dropout.
namespace sftrun::kernels {

struct Embedding {
  std::string name;   ///< HF name: "model.embed_tokens"
  at::Tensor weight;  ///< [vocab, hidden] in the compute dtype; a view of its parameter if trained
  std::optional<QuantizedMatrix> quantized;  ///< in place of `weight`, which is undefined then
  Parameter* parameter = nullptr;
  double scale = 1;  ///< of what the table gives, the update's part included (Gemma, Granite)
  /// A [r, vocab], B [hidden, r]. DoRA's magnitudes [hidden] are the channels', whose lengths are
  /// those of the columns of W + s (B A)^T.
  std::optional<LoraAdapter> lora;

  Matrix matrix() const { return quantized ? Matrix(*quantized) : Matrix(weight); }
  bool trains() const { return parameter != nullptr || lora.has_value(); }
};

/// @param tokens [T] int64   @return [T, hidden]
at::Tensor embedding_forward(const Embedding& embedding, const at::Tensor& tokens,
                             at::ScalarType dtype);
/// Adds the parameters' gradients. What it needs of the forward pass it looks up again.
/// @param grad of what forward gave, [T, hidden]
void embedding_backward(const Embedding& embedding, const at::Tensor& tokens,
                        const at::Tensor& grad);

}  // namespace sftrun::kernels
