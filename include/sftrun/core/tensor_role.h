#pragma once

/// What a tensor of a model or of an adapter is. Data that every tensor and trained parameter
/// carries, so that nobody has to read it from a name.
namespace sftrun {

enum class TensorRole {
  kEmbedding,  ///< a lookup table
  kNorm,
  kLinear,  ///< the weight of a linear layer
  kBias,
  kHead,     ///< the language-model head
  kExperts,  ///< the stacked matrices of all experts of a layer: [experts, rows, columns]
  kOther,    ///< convolutions and other small tensors
  kBuffer,   ///< never trained
  kLoraA,
  kLoraB,
  kEmbeddingLora,  ///< A or B of an embedding's adapter
  kMagnitude,      ///< of DoRA
};

}  // namespace sftrun
