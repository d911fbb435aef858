#include "staging.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "sftrun/core/error.h"

namespace sftrun::model {

Staging::Staging(int64_t bytes, const BatchTarget& target, bool is_pinned)
    : target_(target), is_pinned_(is_pinned && target.copies) {
  host_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(is_pinned_));
}

void* Staging::place(int64_t count, at::ScalarType dtype) {
  const auto bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
  SFTRUN_CHECK(used_ + bytes <= host_.numel());
  parts_.push_back({used_, count, dtype});
  auto* at = host_.data_ptr<uint8_t>() + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

/// On a copy stream; the buffer is not reused before the computing stream is past it.
at::Tensor Staging::on_device() const {
  const at::Device device = target_.device;
  if (device.is_cpu()) return host_;
  if (!is_pinned_) return host_.to(device);
  const c10::Stream computing = c10::impl::VirtualGuardImpl(device.type()).getStream(device),
                    copying = *target_.copies;
  c10::Event copied(device.type());
  at::Tensor there;
  {
    const c10::StreamGuard guard(copying);
    there = host_.to(device, /*non_blocking=*/true);
    copied.record(copying);
  }
  copied.block(computing);
  there.record_stream(computing);
  return there;
}

std::vector<at::Tensor> Staging::send() const {
  const at::Tensor all = on_device();
  std::vector<at::Tensor> arrays;
  for (const Part& part : parts_) {
    const auto bytes = part.count * static_cast<int64_t>(c10::elementSize(part.dtype));
    arrays.push_back(all.narrow(0, part.offset, bytes).view(part.dtype));
  }
  return arrays;
}

}  // namespace sftrun::model
