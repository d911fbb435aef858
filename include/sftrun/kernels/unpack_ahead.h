#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <vector>

namespace sftrun::kernels {

struct JointLinears;

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
  /// Before the first product of a micro-batch, when the adapters' A are as they stay. What the
  /// buffers hold is void.
  void begin(Pass pass);
  /// The linears' values and, below these, the adapters' A: [N + ranks, K]. Of FP8 the codes
  /// turned, [K, N] uint8. Until `done`, and for the current stream.
  at::Tensor values(const JointLinears& joint);
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
    c10::Event ready;  // recorded on `unpacking_`
    bool is_awaited = false;
  };
  struct Layout {
    int64_t rows, columns;
    at::ScalarType dtype;
    int64_t bytes() const { return rows * columns * static_cast<int64_t>(c10::elementSize(dtype)); }
  };
  using Order = std::vector<const JointLinears*>;

  /// Notes that it was asked for.
  void follow(const JointLinears& joint);
  c10::Stream computing() const;
  Layout layout_of(const JointLinears& joint) const;
  at::Tensor matrix_in(const Buffer& buffer, const JointLinears& joint) const;
  void unpack(const JointLinears& joint, Buffer& buffer);
  void unpack_beside(const JointLinears& joint, Buffer& buffer);

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
