#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <vector>

namespace sftrun::kernels {

struct JointLinears;

/// What a product reads of a joint matrix.
enum class JointPart : uint8_t {
  kWeights,      ///< W [N, K]
  kWeightsAndB,  ///< [W | scale B] [N, K + ranks]: forward
  kWeightsAndA,  ///< [W ; A] [N + ranks, K]: backward
};

/// Quantised matrices on CUDA, unpacked before their products are due: on a stream of its own, into
/// two buffers in turn, while the product before reads the other one. Which comes next is what came
/// next in the pass before; where that is wrong, a matrix is unpacked when it is asked for.
class UnpackAhead {
 public:
  enum class Pass : uint8_t {
    kForward,
    kTraining,
    kDecoding
  };  ///< each asks in an order of its own

  UnpackAhead(at::Device device, at::ScalarType dtype);
  UnpackAhead(const UnpackAhead&) = delete;
  UnpackAhead& operator=(const UnpackAhead&) = delete;
  ~UnpackAhead();
  /// Before anything is asked for. They must not move any more.
  void serve(const JointLinears& joint);
  /// Before the first product of a micro-batch, when the adapters are as they stay. What the
  /// buffers hold is void.
  void begin(Pass pass);
  /// [N + ranks, K + ranks], of which the part that is asked for has its values. Of FP8 the codes
  /// turned, [K, N] uint8. Until `done`, and for the current stream.
  at::Tensor values(const JointLinears& joint, JointPart part);
  /// What reads the values asked for last is queued on the current stream: their buffer is free for
  /// what comes after the next.
  void done();
  /// The current stream waits for what is unpacked and was not asked for.
  void join();
  /// After a capture that failed: nothing that was queued since `join` is going to happen.
  void forget();

 private:
  struct Buffer {
    explicit Buffer(at::Device device) : ready(device.type()) {}
    at::Tensor memory;
    const JointLinears* holds = nullptr;
    bool has_a = false, has_b = false;
    c10::Event ready;  // recorded on `unpacking_`
    bool is_awaited = false;
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

  /// Notes what was asked for.
  void follow(const Wanted& wanted);
  c10::Stream computing() const;
  Layout layout_of(const JointLinears& joint) const;
  at::Tensor matrix_in(const Buffer& buffer, const JointLinears& joint) const;
  void unpack(const Wanted& wanted, Buffer& buffer);
  void unpack_beside(const Wanted& wanted, Buffer& buffer);
  /// What is wanted of them beside the weights that the buffer holds.
  void add_adapters(const Wanted& wanted, Buffer& buffer) const;

  at::TensorOptions options_;
  c10::Stream unpacking_;
  int64_t most_bytes_ = 0;
  std::array<Buffer, 2> buffers_;
  size_t last_ = 0;  // the buffer that was given away last
  c10::Event free_;  // recorded on the computing stream
  std::array<Order, 3> orders_;
  Order* order_ = nullptr;
  size_t asked_ = 0;  // of `order_`
};

}  // namespace sftrun::kernels
