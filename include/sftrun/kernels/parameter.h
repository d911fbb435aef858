#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "sftrun/core/file_layout.h"

/// Trainable parameters in flat buffers: fp32 master weights, fp32 gradients, and a copy in the
/// compute dtype if that is not fp32. With flat buffers the optimizer, gradient clipping and
/// all-reduce are single passes over memory.
namespace sftrun::kernels {

/// Kind of a parameter, for the optimizer's choice of method.
enum class ParameterRole {
  kMatrix,     ///< the weight of a linear layer
  kExperts,    ///< the stacked matrices of all experts of a layer
  kEmbedding,  ///< embedding table
  kHead,       ///< the language-model head
  kOther,      ///< norm, bias, convolution and other small tensors
  kLoraA,
  kLoraB,
  kEmbeddingLora,  ///< A or B of an embedding's adapter
  kMagnitude,      ///< DoRA magnitude
};

struct Parameter {
  std::string name;  ///< HF or PEFT name: "model.layers.0.self_attn.q_proj.lora_A.weight"
  std::vector<int64_t> shape;
  int64_t group = 0;  ///< order of use: 0 embedding, 1 + layer, num_layers + 1 final norm and head
  ParameterRole role = ParameterRole::kMatrix;
  bool decays =
      true;  ///< whether weight decay applies (not to norms and biases, as in transformers'
             ///< Trainer)
  bool in_fp32 = false;  ///< `compute` is the master, whatever the compute dtype
  int64_t offset = 0;    ///< first element in the flat buffers
  int64_t numel = 0;
  at::Tensor master;   ///< fp32 view; an autograd leaf whose .grad is `grad`
  at::Tensor grad;     ///< fp32 view; gradients accumulate here
  at::Tensor compute;  ///< view in the compute dtype, read by products (the master if that is fp32)

  FileLayout layout = {};
  /// Copies the master to the compute copy, if that is another tensor.
  void refresh_compute();
  const std::vector<int64_t>& shape_in_files() const {
    return layout.shape.empty() ? shape : layout.shape;
  }
  /// A view of `values` (of shape `shape`) with the elements in the files' order.
  at::Tensor in_file_order(const at::Tensor& values) const;
};

/// Owns the parameters. Addresses stay valid for its lifetime.
class ParameterStore {
 public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  ParameterStore(ParameterStore&&) = default;

  /// Groups must be added in ascending order. The tensors exist after `allocate`.
  Parameter* add(std::string name, std::vector<int64_t> shape, int64_t group, bool decays);
  void allocate(at::ScalarType compute_dtype, at::Device device);

  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  Parameter* find(const std::string& name);
  bool empty() const { return parameters_.empty(); }
  int64_t numel() const;  ///< sum over parameters, without padding

  at::Tensor& master() { return master_; }  ///< [flat] fp32
  at::Tensor& grad() { return grad_; }      ///< [flat] fp32
  at::Tensor& compute() { return compute_; }
  /// Elements [begin, end) of a group in the flat buffers; empty if it has no parameter.
  std::pair<int64_t, int64_t> group_range(int64_t group) const;
  int64_t num_groups() const;

  void zero_grad();
  /// Copies the masters to the compute copies, after loading; optimizer steps do it themselves.
  void refresh_compute();
  /// Counter of changes of the compute copies; values derived from them are outdated when it grows.
  uint64_t version() const { return version_; }
  /// Must be called after writing to the compute copies.
  void compute_changed() { ++version_; }

 private:
  std::deque<Parameter> parameters_;
  int64_t flat_size_ = 0;
  uint64_t version_ = 1;
  at::Tensor master_, grad_, compute_;
};

}  // namespace sftrun::kernels
