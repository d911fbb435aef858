#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/core/file_layout.h"
#include "sftrun/core/model_part.h"
#include "sftrun/core/tensor_role.h"
#include "sftrun/core/tensor_slice.h"
#include "sftrun/layers/unit.h"

/// Trainable parameters in flat buffers: fp32 master weights, fp32 gradients, and a copy in the
/// compute dtype if that is not fp32. With flat buffers the optimizer, gradient clipping and
/// all-reduce are single passes over memory.
namespace sftrun::layers {

struct Parameter {
  std::string name;  ///< HF or PEFT name: "model.layers.0.self_attn.q_proj.lora_A.weight"
  std::vector<int64_t> shape;
  int64_t unit = 0;                       ///< index of its unit (unit.h)
  TensorRole role = TensorRole::kLinear;  ///< for the optimizer's choice of method
  ModelPart part = ModelPart::kLanguage;  ///< for its learning rate
  bool decays =
      true;  ///< whether weight decay applies (not to norms and biases, as in transformers'
             ///< Trainer)
  bool in_fp32 = false;  ///< `compute` is the master, whatever the compute dtype
  int64_t offset = 0;    ///< first element in the flat buffers (of its unit, if they are per unit)
  int64_t numel = 0;
  // Undefined if this process does not hold the unit (`BufferLayout::held`).
  at::Tensor master;   ///< fp32 view; an autograd leaf whose .grad is `grad`
  at::Tensor grad;     ///< fp32 view; gradients accumulate here
  at::Tensor compute;  ///< view in the compute dtype, read by products (the master if that is fp32)

  /// Set if this rank has a part of the tensor: `shape` is that of the part.
  std::optional<TensorSlice> slice = std::nullopt;
  /// Tensor parallelism: the ranks have the same values, and the gradient of each rank is a summand.
  bool has_partial_gradient = false;

  FileLayout layout = {};  ///< of the whole tensor
  std::vector<int64_t> whole_shape() const;
  int64_t whole_numel() const;
  std::vector<int64_t> shape_in_files() const {
    return layout.shape.empty() ? whole_shape() : layout.shape;
  }
  /// This rank's part of the whole tensor.   @param values of shape `whole_shape`
  at::Tensor part_of(const at::Tensor& values) const;
  /// A view of `values` (of shape `whole_shape`) with the elements in the files' order.
  at::Tensor in_file_order(const at::Tensor& values) const;
};

/// A view of `values` with the elements in the files' order.
at::Tensor in_file_order(const at::Tensor& values, const FileLayout& layout);
/// Values that lie as in a file, in the order of memory.   @param shape of the tensor in memory
/// @return a view of `stored` if both orders are the same
at::Tensor in_memory_order(const at::Tensor& stored, const FileLayout& layout,
                           at::IntArrayRef shape);

/// Flat buffers of parameters, whose values lie one after the other. Between two parameters may be
/// padding, whose values are zero.
struct FlatValues {
  at::Tensor master, grad;  ///< [n] fp32
  at::Tensor compute;       ///< [n] in the compute dtype; `master` itself if that is fp32
};
/// Views of elements [begin, begin + numel).
FlatValues part_of(const FlatValues& flat, int64_t begin, int64_t numel);

/// How the parameters are laid out.
struct BufferLayout {
  /// One set of buffers for each unit, so that the memory of a unit can be released; false: one set
  /// for all units.
  bool is_per_unit = false;
  /// Ranks over which a strategy divides each unit: its size becomes a multiple of this, and parts
  /// begin where blocks of 8-bit optimizer states begin.
  int64_t num_parts = 1;
  /// Units whose parameters this process holds, if not per unit.
  UnitRange held = {};
  /// A unit whose parameters this process reads, but another one updates. Its buffers are its own.
  std::optional<int64_t> borrowed = std::nullopt;

  bool holds(int64_t unit) const { return held.contains(unit) || borrowed == unit; }
  static BufferLayout per_unit(int64_t num_parts = 1) {
    return {.is_per_unit = true, .num_parts = num_parts};
  }
};

/// Owns the parameters. Addresses stay valid for its lifetime.
class ParameterStore {
 public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;
  ParameterStore(ParameterStore&&) = default;

  /// Units must be added in ascending order. The tensors exist after `allocate`.
  Parameter* add(std::string name, std::vector<int64_t> shape, int64_t unit, bool decays);
  void allocate(at::ScalarType compute_dtype, at::Device device, const BufferLayout& layout = {});
  /// Allocates the buffers of a unit, with zeros. Buffers for all units exist after `allocate`;
  /// those of single units are allocated when they are filled.
  void reserve_unit(int64_t unit);

  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  Parameter* find(const std::string& name);
  bool empty() const { return parameters_.empty(); }
  int64_t numel() const;  ///< sum over parameters, of whole tensors, without padding

  // One set of buffers for all units that this process holds: [flat].
  at::Tensor& master() { return one().master; }  ///< fp32
  at::Tensor& grad() { return one().grad; }      ///< fp32
  at::Tensor& compute() { return one().compute; }
  /// The buffers that hold a unit's parameters; null if none of it trains or this process does not
  /// hold it.
  FlatValues* buffers_of(int64_t unit);
  /// Whether this process updates the parameters of a unit.
  bool owns(int64_t unit) const;
  /// Elements [begin, end) of a unit in its buffers, with padding; empty if none of it trains.
  std::pair<int64_t, int64_t> unit_range(int64_t unit) const;
  void zero_grad();

  /// Copies the masters to the compute copies, after loading; optimizer steps do it themselves.
  void refresh_compute();
  void refresh_compute(int64_t unit);
  /// Which values the compute copies have; values derived from those of another version are outdated.
  uint64_t version() const { return reads_start_ ? kStartVersion : version_; }
  /// Must be called after writing to the compute copies.
  void compute_changed() { ++version_; }
  /// Whether passes read the values as they were at the start (`UnitHooks::read_start`).
  bool reads_start() const { return reads_start_; }
  void set_reads_start(bool reads) { reads_start_ = reads; }

 private:
  /// Where the parameters of a unit are.
  struct UnitPlace {
    size_t buffer = 0;           // index in buffers_
    int64_t begin = 0, end = 0;  // elements, with padding
  };
  FlatValues& one();
  std::deque<Parameter> parameters_;
  std::map<int64_t, UnitPlace> places_;  // of each unit that trains
  static constexpr uint64_t kStartVersion = std::numeric_limits<uint64_t>::max();
  uint64_t version_ = 1;
  bool reads_start_ = false;
  BufferLayout layout_;
  std::vector<FlatValues> buffers_;
};

/// The values that this rank updates: all values, or a part of each parameter if a strategy shards
/// them.
struct OwnedValues {
  /// The part of a parameter, in the order of its elements in memory.
  struct Piece {
    Parameter* parameter = nullptr;
    int64_t begin = 0, numel = 0;  ///< elements of the parameter; numel 0: none is owned
    int64_t offset = 0;            ///< of the first one in the flat buffers
    bool is_whole() const { return numel == parameter->numel; }
    int64_t end_offset() const { return offset + numel; }
    /// The parameter's values in one of the flat buffers, as a view in its shape.   @pre is_whole()
    at::Tensor whole_in(const at::Tensor& flat) const;
  };
  OwnedValues() = default;
  /// All values that the store holds.   @pre one set of buffers for all units
  // NOLINTNEXTLINE(google-explicit-constructor): an optimizer updates a store
  OwnedValues(ParameterStore& owner);
  /// Copies the masters of a parameter to the compute copies, if these are other tensors.
  /// @pre piece.is_whole()
  void refresh_compute(const Piece& piece) const;

  ParameterStore* store = nullptr;
  FlatValues flat;
  std::vector<Piece> pieces;  ///< one per parameter, in the store's order
};

}  // namespace sftrun::layers
