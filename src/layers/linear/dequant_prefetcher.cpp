#include "sftrun/layers/dequant_prefetcher.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <span>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/layers/joint_linears.h"

namespace sftrun::layers {

DequantPrefetcher::DequantPrefetcher(at::Device device, at::ScalarType dtype, bool units_leave)
    : options_(at::TensorOptions().device(device).dtype(dtype)),
      unpacking_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      units_leave_(units_leave),
      buffers_{Buffer(device), Buffer(device)},
      free_(device.type()),
      order_(&orders_[0]) {}

/// Matrices unpacked ahead may still be written to buffers that are about to be freed.
DequantPrefetcher::~DequantPrefetcher() {
  try {
    unpacking_.synchronize();
  } catch (const c10::Error&) {  // the device is lost
  }
}

void DequantPrefetcher::serve(const JointLinears& joint) {
  max_bytes_ = std::max(max_bytes_, layout_of(joint).bytes());
}

void DequantPrefetcher::begin(Pass pass, UnitHooks* hooks) {
  hooks_ = hooks;
  order_ = &orders_[static_cast<size_t>(pass)];
  asked_ = 0;
  for (Buffer& buffer : buffers_) buffer.holds = nullptr;
  done();
}

void DequantPrefetcher::arrived(int64_t unit) {
  if (!units_leave_) return;
  here_.insert(unit);
  done();
}

void DequantPrefetcher::leaving(int64_t unit) {
  if (!units_leave_) return;
  here_.erase(unit);
  for (Buffer& buffer : buffers_)
    if (buffer.unit == unit) await(buffer);
}

bool DequantPrefetcher::is_readable(int64_t unit) {
  if (is_here(unit)) return true;
  const c10::StreamGuard guard(unpacking_);
  return hooks_ != nullptr && hooks_->await_frozen(unit);
}

DequantPrefetcher::Layout DequantPrefetcher::layout_of(const JointLinears& joint) const {
  if (joint.fp8) return {joint.fp8->columns, joint.fp8->rows, at::kByte};
  return {joint.out_features() + joint.ranks(), joint.in_features() + joint.ranks(),
          c10::typeMetaToScalarType(options_.dtype())};
}

at::Tensor DequantPrefetcher::matrix_in(const Buffer& buffer, const JointLinears& joint) const {
  const Layout layout = layout_of(joint);
  return buffer.memory.narrow(0, 0, layout.bytes())
      .view(layout.dtype)
      .view({layout.rows, layout.columns});
}

void DequantPrefetcher::follow(const Wanted& wanted) {
  if (asked_ == order_->size() || (*order_)[asked_] != wanted) {
    order_->erase(order_->begin() + static_cast<std::ptrdiff_t>(asked_), order_->end());
    order_->push_back(wanted);
  }
  ++asked_;
}

void DequantPrefetcher::unpack(const Wanted& wanted, Buffer& buffer) {
  const JointLinears& joint = *wanted.joint;
  buffer.holds = &joint;
  buffer.has_a = buffer.has_b = false;
  const at::Tensor all = matrix_in(buffer, joint);
  if (joint.fp8) return kernels::transpose_codes_into(*joint.fp8, all);
  const at::Tensor weights = all.narrow(1, 0, joint.in_features());
  int64_t row = 0;
  for (const Linear* linear : joint.members) {
    const int64_t rows = linear->quantized->rows;
    kernels::dequantize_into(*linear->quantized, weights.narrow(0, row, rows));
    row += rows;
  }
  add_adapters(wanted, buffer);
}

void DequantPrefetcher::add_adapters(const Wanted& wanted, Buffer& buffer) const {
  const JointLinears& joint = *wanted.joint;
  const int64_t rows = joint.out_features(), ranks = joint.ranks();
  const at::Tensor all = matrix_in(buffer, joint);
  if (wanted.part == JointPart::kWeightsAndA && !std::exchange(buffer.has_a, true))
    all.narrow(0, rows, ranks).copy_(joint.rows_of_a());
  if (wanted.part == JointPart::kWeightsAndB && !std::exchange(buffer.has_b, true))
    all.narrow(0, 0, rows).narrow(1, joint.in_features(), ranks).copy_(joint.b);
}

void DequantPrefetcher::await(Buffer& buffer) {
  if (std::exchange(buffer.is_awaited, false)) buffer.ready.block(computing());
}

void DequantPrefetcher::prefetch(Wanted wanted, Buffer& buffer) {
  if (units_leave_) await(buffer);  // a wrong prediction, whose unit may leave before this one
  buffer.unit = wanted.joint->unit;
  if (!is_here(buffer.unit)) wanted.part = JointPart::kWeights;
  free_.record(computing());  // after the kernels that read the buffer's content
  free_.block(unpacking_);
  const c10::StreamGuard guard(unpacking_);
  unpack(wanted, buffer);
  buffer.ready.record(unpacking_);
  buffer.is_awaited = true;
}

c10::Stream DequantPrefetcher::computing() const {
  return c10::impl::VirtualGuardImpl(options_.device().type()).getStream(options_.device());
}

at::Tensor DequantPrefetcher::values(const JointLinears& joint, JointPart part) {
  for (Buffer& buffer : buffers_)
    if (!buffer.memory.defined())
      buffer.memory = at::empty({max_bytes_}, options_.dtype(at::kByte));
  const Wanted wanted{&joint, part};
  follow(wanted);
  if (buffers_[last_].holds != &joint) last_ = 1 - last_;
  Buffer& own = buffers_[last_];
  await(own);
  if (own.holds != &joint)
    unpack(wanted, own);
  else if (!joint.fp8)
    add_adapters(wanted, own);  // for the other direction, if it was unpacked for one
  return matrix_in(own, joint);
}

/// Starts unpacking now rather than at the next request, so that it overlaps with work launched
/// until then, such as attention.
void DequantPrefetcher::done() {
  const auto wanted =
      std::span(*order_).subspan(asked_).first(std::min(buffers_.size(), order_->size() - asked_));
  const auto is_held = [&](const JointLinears* joint) {
    return buffers_[0].holds == joint || buffers_[1].holds == joint;
  };
  std::array<bool, 2> is_kept{};
  for (size_t i = 0; i < buffers_.size(); ++i)
    is_kept[i] = std::any_of(wanted.begin(), wanted.end(),
                             [&](const Wanted& one) { return one.joint == buffers_[i].holds; });
  for (const Wanted& one : wanted) {
    if (is_held(one.joint)) continue;
    const size_t place = is_kept[1 - last_] ? last_ : 1 - last_;
    if (is_kept[place] || !is_readable(one.joint->unit)) return;
    is_kept[place] = true;
    prefetch(one, buffers_[place]);
  }
}

void DequantPrefetcher::join() {
  for (Buffer& buffer : buffers_) await(buffer);
}

void DequantPrefetcher::forget() {
  for (Buffer& buffer : buffers_) {
    buffer.holds = nullptr;
    buffer.is_awaited = false;
  }
}

}  // namespace sftrun::layers
