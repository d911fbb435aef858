#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

/// Units of a model and the memory of their frozen tensors. Trainable parameters: parameter.h.
namespace sftrun::layers {

/// Frees the memory of a tensor. The tensor and its views remain valid objects, but must not be
/// read or written until `reserve_memory`.   @param flat shares its storage with its views only
void release_memory(const at::Tensor& flat);
/// Allocates the memory again; its contents are undefined. Does nothing if it is allocated.
void reserve_memory(const at::Tensor& flat);

/// Exchanges the memory of two tensors, and with it that of their views. Nothing is copied.
/// @param one, other have the same size and device, and share their storages with their views only
void exchange_memory(const at::Tensor& one, const at::Tensor& other);

/// A tensor that has no memory until `reserve_memory`.
at::Tensor without_memory(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);

/// Reads bytes [begin, begin + to.size()) of a tensor that is not in memory, from the model's files.
using ReadBytes = std::function<void(int64_t begin, std::span<std::byte> to)>;
/// What storages without memory hold, in the model's files.
using UnreadStorages = std::map<const c10::StorageImpl*, ReadBytes>;

/// The frozen tensors of a unit, in whatever format: dense, or the codes and scales of quantised
/// matrices.
class FrozenStorage {
 public:
  /// Parts of a divided buffer begin at multiples of this, so that none begins within a value.
  static constexpr int64_t kPartAlignment = 16;  // bytes

  /// Registers a tensor. Copies of the handle `tensor` follow when `place` moves it; views that were
  /// made of it before do not.
  void add(const at::Tensor& tensor);
  /// Registers a tensor without memory.   @param read reads the bytes of its storage
  void add_unread(const at::Tensor& tensor, ReadBytes read);
  /// Makes all tensors views of one buffer, which has no memory yet. Tensors that share a storage
  /// keep sharing it.
  /// @param multiple the size of the buffer becomes a multiple of it, in bytes
  void place(int64_t multiple = 1);
  /// Copies bytes of the buffer, beginning at `begin`, from where they were before `place`, or reads
  /// them. Other bytes are not touched.
  /// @param to [n] uint8, on any device; padding between tensors becomes zero
  void read(int64_t begin, const at::Tensor& to) const;
  /// Frees what `read` copies from.
  void forget_sources() { sources_.clear(); }
  /// [n] uint8: the buffer; undefined before `place` and if there are no tensors. Its memory may be
  /// released and reserved.
  const at::Tensor& bytes() const { return bytes_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  /// Bytes that several tensors may share, and their place in the buffer.
  struct Source {
    c10::Storage storage;
    ReadBytes read;  // empty: the storage has the bytes
    int64_t begin = 0;
    int64_t size() const { return static_cast<int64_t>(storage.nbytes()); }
  };
  Source* source_of(const at::Tensor& tensor);
  void add_source(const at::Tensor& tensor, ReadBytes read);

  std::vector<at::Tensor> tensors_;
  std::vector<Source> sources_;
  at::Tensor bytes_;
};

/// Initial values of a trained parameter that are not in memory.
struct UnreadValues {
  int64_t offset = 0, numel = 0;  ///< elements of the unit's flat buffers
  ReadBytes read;                 ///< as fp32
};

/// The smallest part of a model that a strategy gathers, releases, reduces and places as a whole:
/// the embedding, one layer, the final norm with the head.
struct Unit {
  std::string name;  ///< "embedding", "layer 0", "head"
  FrozenStorage frozen;
  /// While the model is loaded: all trained parameters, if the unit's masters have no memory.
  std::vector<UnreadValues> unread;
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
  /// Whether the trained values as they were at the start are kept.
  virtual bool keeps_start() const { return false; }
  /// true: until the call with false, passes read the trained values as they were at the start. No
  /// pass may write gradients in between.   @pre keeps_start()
  virtual void read_start(bool /*reads*/) {}
  /// Makes the current stream, which is not that of the passes, wait for the frozen tensors of a
  /// unit.   @return false: they are neither in memory nor on their way
  virtual bool await_frozen(int64_t /*unit*/) { return true; }
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
