#include "sftrun/spec/blocks.h"

#include <algorithm>
#include <iterator>

#include "blocks/block.h"
#include "sftrun/core/error.h"

namespace sftrun::spec {

#define SFTRUN_DECLARE_BLOCK(name) \
  namespace name {                 \
  extern const Block kBlock;       \
  }
SFTRUN_BLOCKS(SFTRUN_DECLARE_BLOCK)
#undef SFTRUN_DECLARE_BLOCK

namespace {

NormSpec over_hidden(const ArchSpec& arch, const char* role, const char* module, const char* gguf) {
  return {.role = role, .module = module, .gguf = gguf, .size = arch.hidden_size};
}

/// The members of a kind of all blocks of a layer.
template <typename Tensor>
std::vector<Tensor> members(const ArchSpec& arch, int64_t layer,
                            std::vector<Tensor> BlockTensors::*kind) {
  std::vector<Tensor> all;
  for (BlockTensors& block : layer_blocks(arch, layer))
    std::move((block.*kind).begin(), (block.*kind).end(), std::back_inserter(all));
  return all;
}

}  // namespace

std::span<const Block* const> all_blocks() {
#define SFTRUN_ADDRESS_OF_BLOCK(name) &name::kBlock,
  static constexpr const Block* kBlocks[] = {SFTRUN_BLOCKS(SFTRUN_ADDRESS_OF_BLOCK)};
#undef SFTRUN_ADDRESS_OF_BLOCK
  return kBlocks;
}

// transformers names a norm by its position: "post_attention" is before the MLP where no norm is
// after attention.

std::vector<NormSpec> norms_before_mixer(const ArchSpec& arch) {
  if (arch.norms == NormPlacement::kAfter) return {};
  return {over_hidden(arch, "in", "input_layernorm", "attn_norm")};
}

void add_norms_after_mixer(std::vector<NormSpec>& norms, const ArchSpec& arch) {
  if (arch.norms == NormPlacement::kBefore) return;
  norms.push_back(over_hidden(arch, "out", "post_attention_layernorm", "post_attention_norm"));
}

std::vector<NormSpec> norms_of_feed_forward(const ArchSpec& arch) {
  const NormSpec after = over_hidden(arch, "out", "post_feedforward_layernorm", "post_ffw_norm");
  switch (arch.norms) {
    case NormPlacement::kBefore:
      return {over_hidden(arch, "in", "post_attention_layernorm", "")};
    case NormPlacement::kBoth:
      return {over_hidden(arch, "in", "pre_feedforward_layernorm", ""), after};
    case NormPlacement::kAfter:
      return {after};
  }
  invariant_failed(__FILE__, __LINE__, "every NormPlacement has norms");
}

std::vector<BlockTensors> layer_blocks(const ArchSpec& arch, int64_t layer) {
  std::vector<BlockTensors> blocks;
  for (const Block* block : all_blocks()) {
    if (!block->is_in(arch, layer)) continue;
    blocks.push_back(block->tensors(arch, layer));
    blocks.back().block = block->name;
    blocks.back().is_mixer = block->is_mixer;
  }
  return blocks;
}

std::vector<LinearSpec> layer_linears(const ArchSpec& arch, int64_t layer) {
  return members(arch, layer, &BlockTensors::linears);
}

std::vector<ExpertSpec> layer_experts(const ArchSpec& arch, int64_t layer) {
  return members(arch, layer, &BlockTensors::experts);
}

std::string_view mixer_name(const ArchSpec& arch, int64_t layer) {
  for (const Block* block : all_blocks())
    if (block->is_mixer && block->is_in(arch, layer)) return block->name;
  invariant_failed(__FILE__, __LINE__, "every layer has a mixer");
}

bool has_state(const ArchSpec& arch, int64_t layer) {
  return std::any_of(all_blocks().begin(), all_blocks().end(), [&](const Block* block) {
    return block->has_state && block->is_in(arch, layer);
  });
}

bool any_has_state(const ArchSpec& arch) {
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    if (has_state(arch, layer)) return true;
  return false;
}

double mixer_products(const ArchSpec& arch, int64_t layer, int64_t seq_len) {
  double sum = 0;
  for (const Block* block : all_blocks())
    if (block->products != nullptr && block->is_in(arch, layer))
      sum += block->products(arch, layer, seq_len);
  return sum;
}

}  // namespace sftrun::spec
