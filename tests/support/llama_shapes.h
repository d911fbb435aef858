#pragma once

#include "sftrun/spec/arch_spec.h"

namespace sftrun::test {

/// Llama 3 8B's shape.
inline spec::ArchSpec llama_8b() {
  spec::ArchSpec arch;
  arch.family = "llama";
  arch.vocab_size = 128256, arch.hidden_size = 4096, arch.intermediate_size = 14336;
  arch.num_layers = 32;
  arch.layers.resize(32);
  arch.num_heads = 32, arch.num_kv_heads = 8, arch.head_dim = 128;
  arch.max_position_embeddings = 8192;
  return arch;
}

/// Llama 3 70B's shape.
inline spec::ArchSpec llama_70b() {
  spec::ArchSpec arch = llama_8b();
  arch.hidden_size = 8192, arch.intermediate_size = 28672, arch.num_layers = 80;
  arch.layers.resize(80);
  arch.num_heads = 64;
  return arch;
}

}  // namespace sftrun::test
