#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::weights {

/// llama.cpp's name of every tensor that `tensor_specs` gives: "model.layers.3.self_attn.q_proj.
/// weight" is "blk.3.attn_q.weight".
std::map<std::string, std::string> gguf_names(const spec::ArchSpec& arch);

/// Tensors that a file may hold though nothing reads them: the keys of layers that read another's.
std::set<std::string> gguf_unused(const spec::ArchSpec& arch);

/// Whether it is of the experts of a layer, a bias or a matrix.
bool belongs_to_experts(const spec::TensorSpec& tensor);
/// The tensors of a layer's experts, each [experts, out_features, in_features] (biases [experts,
/// out_features]): gate and up, which transformers holds in one, or down.
std::vector<std::string> gguf_expert_names(const spec::TensorSpec& experts);
/// The same where a file holds each expert's matrix apart, as those of the first Mixtrals do, in
/// the order of memory.
std::vector<std::string> gguf_single_expert_names(const spec::TensorSpec& experts);

}  // namespace sftrun::weights
