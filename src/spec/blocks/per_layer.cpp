#include "blocks/block.h"

/// Per-layer inputs and the scalar of a layer's output (Gemma 3n, Gemma 4).
namespace sftrun::spec::per_layer {
namespace {

bool is_in(const ArchSpec& arch, int64_t /*layer*/) {
  return arch.per_layer_size > 0 || arch.layer_scalar;
}

BlockTensors tensors(const ArchSpec& arch, int64_t /*layer*/) {
  BlockTensors block;
  const int64_t hidden = arch.hidden_size, size = arch.per_layer_size;
  if (arch.layer_scalar) {
    block.weights = {{.role = "scalar",
                      .name = "layer_scalar",
                      .gguf = "layer_output_scale.weight",
                      .shape = {1},
                      .tensor_role = TensorRole::kBuffer}};
  }
  if (size == 0) return block;
  block.norms = {
      {.role = "out", .module = "post_per_layer_input_norm", .gguf = "post_norm", .size = hidden}};
  block.linears = {{.role = "gate",
                    .module = "per_layer_input_gate",
                    .gguf = "inp_gate",
                    .in_features = hidden,
                    .out_features = size},
                   {.role = "projection",
                    .module = "per_layer_projection",
                    .gguf = "proj",
                    .in_features = size,
                    .out_features = hidden}};
  return block;
}

}  // namespace

extern const Block kBlock;
const Block kBlock{.name = "per_layer", .is_in = is_in, .tensors = tensors};

}  // namespace sftrun::spec::per_layer
