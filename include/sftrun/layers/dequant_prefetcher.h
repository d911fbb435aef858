#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "sftrun/layers/unit.h"

namespace sftrun::layers {

struct JointLinears;

/// Part of a joint matrix that a product reads.
enum class JointPart : uint8_t {
  kWeights,      ///< W [N, K]
  kWeightsAndB,  ///< [W | scale B] [N, K + ranks]: forward
  kWeightsAndA,  ///< [W ; A] [N + ranks, K]: backward
};

/// Dequantises joint matrices on CUDA ahead of their products: on a separate stream into two
/// alternating buffers, while the previous product reads the other one. The order of the last pass
/// predicts the next matrix; on a wrong prediction the matrix is dequantised when it is requested.
///
/// Where units are in memory only while they are used, the next unit's first matrix is dequantised
/// while this unit is used, as soon as it has arrived; its adapters are added when it is requested.
class DequantPrefetcher {
 public:
  enum class Pass : uint8_t {
    kForward,
    kTraining,
    kDecoding
  };  ///< each has its own order of matrices

  /// @param units_leave units are in memory only between `arrived` and `leaving`
  DequantPrefetcher(at::Device device, at::ScalarType dtype, bool units_leave);
  DequantPrefetcher(const DequantPrefetcher&) = delete;
  DequantPrefetcher& operator=(const DequantPrefetcher&) = delete;
  ~DequantPrefetcher();
  /// Registers a joint matrix; call before the first `values`. The joint must not move afterwards.
  void serve(const JointLinears& joint);
  /// Call before the first product of a micro-batch, when the adapters have their final values.
  /// Invalidates both buffers.
  /// @param hooks of the units, until the next call; null: units that are away are not awaited
  void begin(Pass pass, UnitHooks* hooks = nullptr);
  /// The current stream may use the unit, whose joint matrices have their adapters.
  void arrived(int64_t unit);
  /// Makes the current stream wait for what reads the unit's memory, which is released afterwards.
  void leaving(int64_t unit);
  /// [N + ranks, K + ranks] with the requested part filled in; for FP8 the transposed codes [K, N]
  /// uint8. For use on the current stream until `done`.
  at::Tensor values(const JointLinears& joint, JointPart part);
  /// Call after the product that reads the last `values` was launched. Its buffer may then be
  /// reused for the matrix after next.
  void done();
  /// Makes the current stream wait for matrices that were dequantised but not requested.
  void join();
  /// Call after a failed capture: work launched since `join` will not be executed.
  void forget();

 private:
  struct Buffer {
    explicit Buffer(at::Device device) : ready(device.type()) {}
    at::Tensor memory;
    const JointLinears* holds = nullptr;
    bool has_a = false, has_b = false;
    c10::Event ready;  // recorded on `unpacking_`
    bool is_awaited = false;
    int64_t unit = 0;  // whose memory is read until `ready`
  };
  struct Layout {
    int64_t rows, columns;
    at::ScalarType dtype;
    int64_t bytes() const { return rows * columns * static_cast<int64_t>(c10::elementSize(dtype)); }
  };
  struct Wanted {
    const JointLinears* joint;
    JointPart part;
    bool operator==(const Wanted&) const = default;
  };
  using Order = std::vector<Wanted>;

  /// Records the request in `order_`.
  void follow(const Wanted& wanted);
  c10::Stream computing() const;
  Layout layout_of(const JointLinears& joint) const;
  at::Tensor matrix_in(const Buffer& buffer, const JointLinears& joint) const;
  void unpack(const Wanted& wanted, Buffer& buffer);
  /// Whether the unit's weights are in memory, or on their way: then `unpacking_` waits for them.
  bool is_readable(int64_t unit);
  bool is_here(int64_t unit) const { return !units_leave_ || here_.contains(unit); }
  void await(Buffer& buffer);
  void prefetch(Wanted wanted, Buffer& buffer);
  /// Copies the requested adapter part beside the weights, unless the buffer already has it.
  void add_adapters(const Wanted& wanted, Buffer& buffer) const;

  at::TensorOptions options_;
  c10::Stream unpacking_;
  bool units_leave_;
  UnitHooks* hooks_ = nullptr;
  std::set<int64_t> here_;  // units
  int64_t max_bytes_ = 0;
  std::array<Buffer, 2> buffers_;
  size_t last_ = 0;  // buffer returned last
  c10::Event free_;  // recorded on the computing stream
  std::array<Order, 3> orders_;
  Order* order_ = nullptr;
  size_t asked_ = 0;  // position in `order_`
};

}  // namespace sftrun::layers
