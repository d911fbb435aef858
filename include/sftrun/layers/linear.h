#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/kernels/quant.h"
#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/layers/tensor_ranks.h"

/// Linear layers: a base weight plus an optional adapter. Also norms and other weights.
namespace sftrun::layers {

/// LoRA (arXiv:2106.09685, section 4.1): y += scale * B A dropout(x), beside a frozen weight.
struct LoraAdapter {
  Parameter* a = nullptr;  ///< [r, in_features]
  Parameter* b = nullptr;  ///< [out_features, r]
  double scale = 1;        ///< alpha / r, or alpha / sqrt(r) (rsLoRA)
  double dropout = 0;
  /// Tensor parallelism: the columns of the layer's input that this rank has. The dropout mask is that
  /// of the whole input.
  std::optional<TensorSlice> inputs;
  uint32_t module_number = 0;  ///< key of the dropout mask; unique in the model

  /// DoRA (arXiv:2402.09353), with row norms that count as constants in the backward pass:
  ///     y = magnitude / |W + scale B A| * (W x + scale B A x) + bias
  /// With dropout, the adapter term and W x inside the fraction read dropout(x), and W (x -
  /// dropout(x)) is added without the fraction (peft's lora/dora.py).
  Parameter* magnitude = nullptr;  ///< [out_features]; null: plain LoRA
  at::Tensor squares;  ///< [out_features] fp32: sum of squares of each row of W, or of its part
  at::Tensor lengths;  ///< [out_features] fp32: row norms of an adapter that no longer changes; or
                       ///< undefined
};

/// What an adapter saves for its backward pass.
struct LoraRun {
  at::Tensor low;  ///< dropout(x) A^T [T, r], on CPU times the scale; undefined without an adapter
  at::Tensor result, lengths;  ///< DoRA: the term that the magnitude multiplies [T, out_features],
                               ///< and the row norms
};
/// One entry per linear of a group with the same input.
using LowRank = std::vector<LoraRun>;

/// A tensor that belongs to neither a linear layer nor a norm.
struct Weight {
  at::Tensor weight;  ///< in the compute dtype; a view of its parameter if trained
  Parameter* parameter = nullptr;
  bool defined() const { return weight.defined(); }
};

struct Linear {
  /// Tensor parallelism: what this rank has of the layer, and the ranks that have the rest.
  Division division = Division::kNone;
  const TensorRanks* ranks = nullptr;
  std::string name;         ///< HF name: "model.layers.0.self_attn.q_proj"
  at::Tensor weight, bias;  ///< in the compute dtype, [out_features, in_features] and
                            ///< [out_features] or undefined; views of their parameters if trained
  /// Replaces `weight`, which is then undefined.
  std::optional<kernels::QuantizedMatrix> quantized;
  Parameter* weight_parameter = nullptr;
  Parameter* bias_parameter = nullptr;
  std::optional<LoraAdapter> lora;

  kernels::Matrix matrix() const {
    return quantized ? kernels::Matrix(*quantized) : kernels::Matrix(weight);
  }

  /// Whether the product is a summand of the outputs, which are summed over the ranks.
  bool sums_outputs() const { return division == Division::kInputs; }
  /// Whether the gradient of the inputs is a summand.
  bool sums_input_gradient() const { return division == Division::kOutputs; }
  bool trains() const {
    return weight_parameter != nullptr || bias_parameter != nullptr || lora.has_value();
  }
};

/// RMSNorm; not present if its weight is undefined.
struct Norm {
  at::Tensor weight;  ///< [hidden], compute dtype
  Parameter* parameter = nullptr;
  double eps = 1e-6;
  double offset = 0;  ///< added to the weight: 1 for Gemma
  bool defined() const { return weight.defined(); }
};

/// Linear layers with the same input.
using LinearGroup = std::vector<const Linear*>;

inline bool trains(const LinearGroup& group) {
  for (const Linear* linear : group) {
    if (linear->trains()) return true;
  }
  return false;
}

/// The adapter of a linear where it takes part in the pass; else null.
inline const LoraAdapter* active_adapter(const Linear& linear, const BatchContext& batch) {
  return batch.adapters && linear.lora ? &*linear.lora : nullptr;
}

}  // namespace sftrun::layers
