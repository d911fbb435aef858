#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "sftrun/core/file_layout.h"

/// Trainable parameters, all in flat buffers: one fp32 master, one gradient, and a copy in the
/// compute dtype where that is not fp32. One buffer makes the optimizer, clipping and reduction
/// single passes over memory.
namespace sftrun::kernels {

/// What a parameter is to the optimizer.
enum class ParameterRole {
  kMatrix,     ///< the weight of a linear layer
  kExperts,    ///< the matrices of all experts of a layer, one after the other
  kEmbedding,  ///< a lookup table
  kHead,       ///< the language-model head
  kOther,      ///< norm, bias, convolution, and other small tensors
  kLoraA,
  kLoraB,
  kEmbeddingLora,  ///< A or B of an embedding's adapter
  kMagnitude,      ///< DoRA's
};

struct Parameter {
  std::string name;  ///< HF or PEFT name: "model.layers.0.self_attn.q_proj.lora_A.weight"
  std::vector<int64_t> shape;
  int64_t group = 0;  ///< order of use: 0 embedding, 1 + layer, num_layers + 1 final norm and head
  ParameterRole role = ParameterRole::kMatrix;
  bool decays =
      true;  ///< whether weight decay applies (not to norms and biases, as transformers' Trainer)
  bool in_fp32 = false;  ///< `compute` is the master, whatever the compute dtype
  int64_t offset = 0;    ///< first element in the flat buffers
  int64_t numel = 0;
  at::Tensor master;  ///< fp32 view; an autograd leaf whose .grad is `grad`
  at::Tensor grad;    ///< fp32 view, summed into
  at::Tensor
      compute;  ///< view in the compute dtype: what products read (== master when that is fp32)

  FileLayout layout = {};
  /// Copies the master into the compute copy, where that is another tensor.
  void refresh_compute();
  const std::vector<int64_t>& shape_in_files() const {
    return layout.shape.empty() ? shape : layout.shape;
  }
  /// A view of `values` (of `shape`) whose elements come in the files' order.
  at::Tensor in_file_order(const at::Tensor& values) const;
};

/// Owns the parameters. Addresses stay valid for its lifetime.
class ParameterStore {
 public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  ParameterStore(ParameterStore&&) = default;

  /// Groups must be added in ascending order. Tensors exist after `allocate`.
  Parameter* add(std::string name, std::vector<int64_t> shape, int64_t group, bool decays);
  void allocate(at::ScalarType compute_dtype, at::Device device);

  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  Parameter* find(const std::string& name);
  bool empty() const { return parameters_.empty(); }
  int64_t numel() const;  ///< of the parameters, without the padding between them

  at::Tensor& master() { return master_; }  ///< [flat] fp32
  at::Tensor& grad() { return grad_; }      ///< [flat] fp32
  at::Tensor& compute() { return compute_; }
  /// Element range [begin, end) that a group occupies; empty if it has no parameter.
  std::pair<int64_t, int64_t> group_range(int64_t group) const;
  int64_t num_groups() const;

  void zero_grad();
  /// Copies the masters into the compute copies (after loading; the optimizer does it itself in a
  /// step).
  void refresh_compute();
  /// Counts the changes of the compute copies: what is made of them is to be made again.
  uint64_t version() const { return version_; }
  /// Whoever writes them says so.
  void compute_changed() { ++version_; }

 private:
  std::deque<Parameter> parameters_;
  int64_t flat_size_ = 0;
  uint64_t version_ = 1;
  at::Tensor master_, grad_, compute_;
};

}  // namespace sftrun::kernels
