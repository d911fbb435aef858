#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

/// Units of a model and the memory of their frozen tensors. Trainable parameters: parameter.h.
namespace sftrun::layers {

/// Frees the memory of a tensor. The tensor and its views remain valid objects, but must not be
/// read or written until `reserve_memory`.   @param flat shares its storage with its views only
void release_memory(const at::Tensor& flat);
/// Allocates the memory again; its contents are undefined. Does nothing if it is allocated.
void reserve_memory(const at::Tensor& flat);

/// The frozen tensors of a unit, in whatever format: dense, or the codes and scales of quantised
/// matrices.
class FrozenStorage {
 public:
  /// Registers a tensor. Copies of the handle `tensor` follow when `pack` moves it; views that were
  /// made of it before do not.
  void add(const at::Tensor& tensor);
  /// Moves all tensors into one buffer. Tensors that share a storage keep sharing it.
  /// @param multiple the size of the buffer becomes a multiple of it, in bytes
  void pack(int64_t multiple = 1);
  /// [n] uint8: the buffer; undefined before `pack` and if there are no tensors. Its memory may be
  /// released and reserved.
  const at::Tensor& bytes() const { return bytes_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor bytes_;
};

/// The smallest part of a model that a strategy gathers, releases, reduces and places as a whole:
/// the embedding, one layer, the final norm with the head.
struct Unit {
  std::string name;  ///< "embedding", "layer 0", "head"
  FrozenStorage frozen;
  /// Other units whose tensors this unit reads, too: the embedding, for a tied head.
  std::vector<int64_t> also_reads;
};

/// Consecutive units of a model [first, end).
struct UnitRange {
  int64_t first = 0, end = std::numeric_limits<int64_t>::max();  ///< all units
  bool contains(int64_t unit) const { return first <= unit && unit < end; }
};

/// Which pass over a unit begins or ends.
enum class UnitPass : uint8_t { kForward, kBackward };

/// Called by a stage as it uses the units of a model. Every rank makes the same calls in the same
/// order, also for an empty micro-batch, so they may communicate. The functions of this base class
/// do nothing.
class UnitHooks {
 public:
  UnitHooks() = default;
  UnitHooks(const UnitHooks&) = delete;
  UnitHooks& operator=(const UnitHooks&) = delete;
  virtual ~UnitHooks() = default;
  /// The tensors of the unit are about to be used. With kBackward its gradients may be written, too.
  /// The head's forward and backward pass in training is one kBackward pass; so is a backward pass
  /// that computes activations again. The units that a unit `also_reads` get the same calls.
  virtual void before(int64_t /*unit*/, UnitPass /*pass*/) {}
  /// The tensors of the unit are not used any more in this pass.
  virtual void after(int64_t /*unit*/, UnitPass /*pass*/) {}
  /// The gradients of the unit are complete for this optimizer step. Called for every unit, from
  /// the last to the first, in the last micro-batch of the step.
  virtual void gradients_ready(int64_t /*unit*/) {}
};

/// Passes hidden states and their gradients between a stage of a pipeline and its neighbours. A
/// stage receives in the order in which its neighbour sends.
class StageLinks {
 public:
  StageLinks() = default;
  StageLinks(const StageLinks&) = delete;
  StageLinks& operator=(const StageLinks&) = delete;
  virtual ~StageLinks() = default;
  /// Stages that follow this one; 0: it is the last.
  virtual int64_t num_stages_after() const = 0;
  /// @param hidden [T, hidden], output of this stage; not written by others afterwards
  virtual void send_hidden(const at::Tensor& hidden) = 0;
  /// @param hidden [T, hidden], contiguous, receives the output of the stage before
  virtual void receive_hidden(const at::Tensor& hidden) = 0;
  /// @param grad [T, hidden] of this stage's input
  virtual void send_gradient(const at::Tensor& grad) = 0;
  /// @param grad [T, hidden], contiguous, receives the gradient of this stage's output
  virtual void receive_gradient(const at::Tensor& grad) = 0;
};

}  // namespace sftrun::layers
