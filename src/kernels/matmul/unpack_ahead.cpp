#include "sftrun/kernels/unpack_ahead.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/kernels/joint_linears.h"

namespace sftrun::kernels {

UnpackAhead::UnpackAhead(at::Device device, at::ScalarType dtype)
    : options_(at::TensorOptions().device(device).dtype(dtype)),
      unpacking_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      buffers_{Buffer(device), Buffer(device)},
      begun_(device.type()),
      order_(&orders_[0]) {}

void UnpackAhead::serve(const JointLinears& joint) {
  most_values_ =
      std::max(most_values_, (joint.out_features() + joint.spare()) * joint.in_features());
}

void UnpackAhead::begin(Pass pass) {
  order_ = &orders_[static_cast<size_t>(pass)];
  asked_ = 0;
  for (Buffer& buffer : buffers_) buffer.holds = nullptr;
}

const JointLinears* UnpackAhead::follow(const JointLinears& joint) {
  if (asked_ == order_->size() || (*order_)[asked_] != &joint) {
    order_->resize(asked_);
    order_->push_back(&joint);
  }
  ++asked_;
  return asked_ < order_->size() ? (*order_)[asked_] : nullptr;
}

void UnpackAhead::unpack(const JointLinears& joint, Buffer& buffer) {
  const int64_t columns = joint.in_features();
  int64_t row = 0;
  const auto rows_of = [&](int64_t rows) {
    const at::Tensor part = buffer.memory.narrow(0, row * columns, rows * columns);
    row += rows;
    return part.view({rows, columns});
  };
  for (const Linear* linear : joint.members)
    dequantize_into(*linear->quantized, rows_of(linear->quantized->rows));
  if (joint.has_adapters()) rows_of(joint.spare()).copy_(joint.a);
  buffer.holds = &joint;
}

void UnpackAhead::unpack_beside(const JointLinears& joint, Buffer& buffer,
                                const c10::Stream& computing) {
  begun_.record(computing);  // behind whatever reads what the buffer has now
  begun_.block(unpacking_);
  const c10::StreamGuard guard(unpacking_);
  unpack(joint, buffer);
  buffer.ready.record(unpacking_);
  buffer.is_awaited = true;
}

at::Tensor UnpackAhead::values(const JointLinears& joint) {
  const c10::Stream computing =
      c10::impl::VirtualGuardImpl(options_.device().type()).getStream(options_.device());
  for (Buffer& buffer : buffers_)
    if (!buffer.memory.defined()) buffer.memory = at::empty({most_values_}, options_);
  const JointLinears* next = follow(joint);
  if (buffers_[last_].holds != &joint) last_ = 1 - last_;
  Buffer& own = buffers_[last_];
  if (std::exchange(own.is_awaited, false)) own.ready.block(computing);
  if (own.holds != &joint) unpack(joint, own);
  Buffer& other = buffers_[1 - last_];
  if (next != nullptr && next != &joint && next != other.holds)
    unpack_beside(*next, other, computing);
  const int64_t rows = joint.out_features() + joint.spare();
  return own.memory.narrow(0, 0, rows * joint.in_features()).view({rows, joint.in_features()});
}

}  // namespace sftrun::kernels
