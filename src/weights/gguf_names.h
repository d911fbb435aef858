#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

namespace sftrun::weights {

/// llama.cpp's names of all tensors in `tensor_specs`: "model.layers.3.self_attn.q_proj.weight" is
/// "blk.3.attn_q.weight".
std::map<std::string, std::string> gguf_names(const spec::ArchSpec& arch);

/// The layer in "blk.3.attn_q.weight"; -1 for tensors outside the layers.
int64_t gguf_layer(const std::string& name);

/// The fused tensor of q, k and v (the converter's --fuse-qkv): "blk.3.attn_qkv.weight" for
/// "blk.3.attn_q.weight" and for "blk.3.attn_v.weight". Empty for other tensors.
std::string gguf_fused_name(const std::string& name);
struct QkvRows {
  int64_t first = 0, of_all = 0;
};
/// First row of `name` in the fused tensor, and the number of rows of that tensor.
QkvRows qkv_rows(const spec::ArchSpec& arch, int64_t layer, const std::string& name);

/// Tensors that a file may contain although they are unused: keys of layers that reuse another's.
std::set<std::string> gguf_unused(const spec::ArchSpec& arch);

/// Whether a tensor is a weight or bias of a layer's experts.
bool belongs_to_experts(const spec::TensorSpec& tensor);
/// The file's tensors for an experts' tensor, each [experts, out_features, in_features] (biases
/// [experts, out_features]): gate and up, which are one tensor in transformers, or down.
std::vector<std::string> gguf_expert_names(const spec::TensorSpec& experts);
/// The name if the file has gate and up fused, like transformers (the converter's
/// --fuse-gate-up-exps).
std::string gguf_fused_expert_name(const spec::TensorSpec& experts);
/// The names if the file stores each expert's matrix separately, as the first Mixtral files do; in
/// the order of memory.
std::vector<std::string> gguf_single_expert_names(const spec::TensorSpec& experts);

}  // namespace sftrun::weights
