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

/// The layer of "blk.3.attn_q.weight"; -1 of a tensor outside the layers.
int64_t gguf_layer(const std::string& name);

/// What holds a layer's q, k or v where a file has them one after the other (the converter's
/// --fuse-qkv): of "blk.3.attn_q.weight" and "blk.3.attn_v.weight" alike "blk.3.attn_qkv.weight".
/// Empty: `name` is none of them.
std::string gguf_fused_name(const std::string& name);
struct QkvRows {
  int64_t first = 0, of_all = 0;
};
/// Where the rows of `name` begin in that tensor, and how many it has.
QkvRows qkv_rows(const spec::ArchSpec& arch, int64_t layer, const std::string& name);

/// Tensors that a file may hold though nothing reads them: the keys of layers that read another's.
std::set<std::string> gguf_unused(const spec::ArchSpec& arch);

/// Whether it is of the experts of a layer, a bias or a matrix.
bool belongs_to_experts(const spec::TensorSpec& tensor);
/// The tensors of a layer's experts, each [experts, out_features, in_features] (biases [experts,
/// out_features]): gate and up, which transformers holds in one, or down.
std::vector<std::string> gguf_expert_names(const spec::TensorSpec& experts);
/// Where a file holds gate and up in one, as transformers does (the converter's
/// --fuse-gate-up-exps).
std::string gguf_fused_expert_name(const spec::TensorSpec& experts);
/// The same where a file holds each expert's matrix apart, as those of the first Mixtrals do, in
/// the order of memory.
std::vector<std::string> gguf_single_expert_names(const spec::TensorSpec& experts);

}  // namespace sftrun::weights
