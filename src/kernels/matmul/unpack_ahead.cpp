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
  most_bytes_ = std::max(most_bytes_, layout_of(joint).bytes());
}

void UnpackAhead::begin(Pass pass) {
  order_ = &orders_[static_cast<size_t>(pass)];
  asked_ = 0;
  for (Buffer& buffer : buffers_) buffer.holds = nullptr;
}

UnpackAhead::Layout UnpackAhead::layout_of(const JointLinears& joint) const {
  if (joint.fp8) return {joint.fp8->columns, joint.fp8->rows, at::kByte};
  return {joint.out_features() + joint.ranks(), joint.in_features(),
          c10::typeMetaToScalarType(options_.dtype())};
}

at::Tensor UnpackAhead::matrix_in(const Buffer& buffer, const JointLinears& joint) const {
  const Layout layout = layout_of(joint);
  return buffer.memory.narrow(0, 0, layout.bytes())
      .view(layout.dtype)
      .view({layout.rows, layout.columns});
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
  buffer.holds = &joint;
  const at::Tensor all = matrix_in(buffer, joint);
  if (joint.fp8) return turn_codes_into(*joint.fp8, all);
  int64_t row = 0;
  for (const Linear* linear : joint.members) {
    const int64_t rows = linear->quantized->rows;
    dequantize_into(*linear->quantized, all.narrow(0, row, rows));
    row += rows;
  }
  if (joint.has_adapters()) all.narrow(0, row, joint.ranks()).copy_(joint.a);
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
    if (!buffer.memory.defined())
      buffer.memory = at::empty({most_bytes_}, options_.dtype(at::kByte));
  const JointLinears* next = follow(joint);
  if (buffers_[last_].holds != &joint) last_ = 1 - last_;
  Buffer& own = buffers_[last_];
  if (std::exchange(own.is_awaited, false)) own.ready.block(computing);
  if (own.holds != &joint) unpack(joint, own);
  Buffer& other = buffers_[1 - last_];
  if (next != nullptr && next != &joint && next != other.holds)
    unpack_beside(*next, other, computing);
  return matrix_in(own, joint);
}

}  // namespace sftrun::kernels
