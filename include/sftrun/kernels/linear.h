#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/kernels/parameter.h"
#include "sftrun/kernels/quant.h"

/// A linear layer is a base weight plus an optional adapter.
namespace sftrun::kernels {

/// Low-rank update beside a frozen weight (LoRA, arXiv:2106.09685, section 4.1): y += scale * B A
/// dropout(x).
struct LoraAdapter {
  Parameter* a = nullptr;  ///< [r, in_features]
  Parameter* b = nullptr;  ///< [out_features, r]
  double scale = 1;        ///< alpha / r, or alpha / sqrt(r) (rsLoRA)
  double dropout = 0;
  uint32_t module_number = 0;  ///< key of the dropout's randomness; unique in the model

  /// DoRA (arXiv:2402.09353): y = W x + bias becomes magnitude / |W + scale B A| (W x + scale B A
  /// x)
  /// + bias, with the length of each row, which counts as a constant in the backward pass. Dropout
  /// is in both products behind the fraction, and what it takes from W x comes back unscaled
  /// (peft's lora/dora.py).
  Parameter* magnitude = nullptr;  ///< [out_features]; null: plain LoRA
  at::Tensor squares;              ///< [out_features] fp32: the sum of the squares of W's rows
  at::Tensor lengths;  ///< [out_features] fp32, of an update that no longer changes; or undefined
};

/// What an adapter keeps for its backward pass.
struct LoraRun {
  at::Tensor
      low;  ///< dropout(x) A^T [T, r], on a CPU times the scale; undefined without an adapter
  at::Tensor result, lengths;  ///< of DoRA: what the magnitudes multiply [T, out_features], and
                               ///< the rows' lengths then
};
/// Of linears that share their input.
using LowRank = std::vector<LoraRun>;

/// A tensor that is neither a linear layer's nor a norm's.
struct Weight {
  at::Tensor weight;  ///< in the compute dtype; a view of its parameter if trained
  Parameter* parameter = nullptr;
  bool defined() const { return weight.defined(); }
};

struct Linear {
  std::string name;         ///< HF name: "model.layers.0.self_attn.q_proj"
  at::Tensor weight, bias;  ///< in the compute dtype, [out_features, in_features] and
                            ///< [out_features] or undefined; views of their parameters if trained
  std::optional<QuantizedMatrix> quantized;  ///< in place of `weight`, which is undefined then
  Parameter* weight_parameter = nullptr;
  Parameter* bias_parameter = nullptr;
  std::optional<LoraAdapter> lora;

  Matrix matrix() const { return quantized ? Matrix(*quantized) : Matrix(weight); }

  bool trains() const {
    return weight_parameter != nullptr || bias_parameter != nullptr || lora.has_value();
  }
};

/// RMSNorm; one without a weight is not there.
struct Norm {
  at::Tensor weight;  ///< [hidden], compute dtype
  Parameter* parameter = nullptr;
  double eps = 1e-6;
  double offset = 0;  ///< added to the weight: 1 in Gemma
  bool defined() const { return weight.defined(); }
};

}  // namespace sftrun::kernels
