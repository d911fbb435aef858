#pragma once

#include <vector>

#include "sftrun/kernels/linear.h"

/// The weights of one decoder layer (Llama: modeling_llama.py, LlamaDecoderLayer).
namespace sftrun::kernels {

struct Layer {
  Norm input_norm, post_attention_norm;
  Linear q, k, v, o, gate, up, down;
  std::vector<Linear*> linears() { return {&q, &k, &v, &o, &gate, &up, &down}; }
};

/// Linears that share their input.
using LinearGroup = std::vector<const Linear*>;

inline bool trains(const LinearGroup& group) {
  for (const Linear* linear : group) {
    if (linear->trains()) return true;
  }
  return false;
}

}  // namespace sftrun::kernels
