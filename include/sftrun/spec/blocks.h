#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/tensor_slice.h"
#include "sftrun/spec/arch_spec.h"

/// The blocks that layers are made of: a mixer (attention or a delta net), a feed-forward block (MLP,
/// experts, or both), and per-layer inputs. Each says in one file (src/spec/blocks/) which tensors it
/// has, how files name them, and how tensor parallelism divides them. `layers` has a class for each,
/// which finds its members by the `role` of a tensor. Views are of literals.
namespace sftrun::spec {

/// Consecutive indices of a dimension that tensor parallelism divides.
struct Segment {
  enum class By : uint8_t {
    kHeads,        ///< each rank has the same number of heads
    kSharedHeads,  ///< heads of keys: ranks have copies where there are fewer than ranks
    kChannels,     ///< in multiples of the format's blocks
  };
  By by = By::kHeads;
  int64_t size = 0;
  int64_t num_heads = 0;  ///< kSharedHeads
};

/// A linear module.
struct LinearSpec {
  std::string_view role;  ///< "q"
  std::string module;     ///< HF name within the layer: "self_attn.q_proj"
  std::string_view gguf;  ///< llama.cpp's name within the layer: "attn_q"
  int64_t in_features = 0, out_features = 0;
  bool bias = false;
  Division division = Division::kNone;
  std::vector<Segment> segments;  ///< of the outputs or inputs, as `division` says
  /// It chooses experts: it stays in fp32 and unquantised, and peft adapts it as a parameter.
  bool is_router = false;
  /// In models with experts peft applies its name to the experts.
  bool shares_name_with_experts = false;
  /// CUDA: products of linears of the same joint are one, if their forms allow it; empty: never.
  std::string_view joint;
  std::string_view stored_as;  ///< another name of the module in files; empty: the same
};

/// The matrices of all experts in one tensor [experts, out_features, in_features].
struct ExpertSpec {
  std::string_view role;  ///< "gate_up"
  std::string module;     ///< "mlp.experts.gate_up_proj", the name of the tensor
  int64_t in_features = 0, out_features = 0;
  bool bias = false;  ///< [experts, out_features], named as the module with "_bias"
  Division division = Division::kNone;
  std::vector<Segment> segments;
  /// Names in the layer of the matrices of one expert, "{}" is its number; empty: one tensor.
  std::vector<std::string> matrices;
  /// Files alternate between the rows of gate and up (gpt-oss).
  bool rows_alternate = false;
  FileLayout layout;  ///< of the tensor in files
};

/// A tensor that belongs to no linear module.
struct WeightSpec {
  std::string_view role;  ///< "sinks"
  std::string name;       ///< the complete name within the layer: "self_attn.sinks"
  std::string_view gguf;  ///< the complete name within the layer: "attn_sinks.weight"
  std::vector<int64_t> shape;
  TensorRole tensor_role = TensorRole::kOther;
  std::vector<int64_t> shape_in_files;  ///< if it differs
  std::vector<Segment> segments;        ///< of the first dimension; empty: whole on each rank
};

/// Whole on each rank, or divided by heads. A norm of channels that ranks divide is a `WeightSpec`
/// with `segments` and the role kNorm.
struct NormSpec {
  std::string_view role;  ///< "query"
  std::string module;     ///< "self_attn.q_norm"
  std::string_view gguf;  ///< "attn_q_norm"; empty: `gguf_feed_forward_norm`
  int64_t size = 0;
  bool per_head = false;  ///< tensor-parallel ranks apply it to some of the heads each
  bool adds_one = true;   ///< if the family's norms do (`ArchSpec::norm_adds_one`)
};

/// The tensors of a block in one layer.
struct BlockTensors {
  std::string_view block;  ///< "attention"
  bool is_mixer = false;
  std::vector<NormSpec> norms;
  std::vector<WeightSpec> weights;
  std::vector<LinearSpec> linears;
  std::vector<ExpertSpec> experts;
};
/// The blocks of a layer in the order in which they compute.
std::vector<BlockTensors> layer_blocks(const ArchSpec& arch, int64_t layer);

/// Those of all blocks of a layer. Experts are empty for layers that are not sparse.
std::vector<LinearSpec> layer_linears(const ArchSpec& arch, int64_t layer);
std::vector<ExpertSpec> layer_experts(const ArchSpec& arch, int64_t layer);

/// The name of the layer's mixer in `SFTRUN_MIXERS`.
std::string_view mixer_name(const ArchSpec& arch, int64_t layer);
/// Whether a layer's mixer carries a state from token to token, so that it reads a document in chunks,
/// and one document in a pass.
bool has_state(const ArchSpec& arch, int64_t layer);
bool any_has_state(const ArchSpec& arch);
/// Products that a token needs beside those with matrices, on average of a sequence of `seq_len`.
double mixer_products(const ArchSpec& arch, int64_t layer, int64_t seq_len);

}  // namespace sftrun::spec
