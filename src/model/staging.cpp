#include "staging.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

/// Size rounded up to the arrays' alignment of 16 bytes.
int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 16;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

at::Tensor sent(const at::Tensor& host, at::Device device, bool is_pinned) {
  if (!is_pinned || !device.is_cuda()) return host.to(device);
  const at::Tensor pinned = at::empty(host.sizes(), host.options().pinned_memory(true));
  pinned.copy_(host);
  return pinned.to(device, /*non_blocking=*/true);
}

Staging::Staging(const BatchTarget& target, bool is_pinned)
    : target_(target), is_pinned_(is_pinned && target.copies) {}

void Staging::add_tensor(const at::Tensor& host, at::Tensor& to) {
  SFTRUN_CHECK(host.is_contiguous() && host.is_cpu());
  parts_.push_back({host.numel(), host.scalar_type(),
                    [host](void* room) { std::memcpy(room, host.const_data_ptr(), host.nbytes()); },
                    &to, host.sizes().vec()});
}

/// Copies on the copy stream; record_stream delays reuse of the buffer until the computing stream
/// is done with it.
at::Tensor Staging::on_device(const at::Tensor& host) const {
  const at::Device device = target_.device;
  if (device.is_cpu()) return host;
  if (!is_pinned_) return host.to(device);
  const c10::Stream computing = c10::impl::VirtualGuardImpl(device.type()).getStream(device),
                    copying = *target_.copies;
  c10::Event copied(device.type());
  at::Tensor there;
  {
    const c10::StreamGuard guard(copying);
    there = host.to(device, /*non_blocking=*/true);
    copied.record(copying);
  }
  copied.block(computing);
  there.record_stream(computing);
  return there;
}

at::Tensor Staging::send() {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += aligned(part.bytes());
  const at::Tensor host =
      at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(is_pinned_));
  int64_t offset = 0;
  for (const Part& part : parts_) {
    part.write(host.data_ptr<uint8_t>() + offset);
    offset += aligned(part.bytes());
  }
  const at::Tensor all = on_device(host);
  offset = 0;
  for (const Part& part : parts_) {
    *part.to = all.narrow(0, offset, part.bytes()).view(part.dtype).view(part.sizes);
    offset += aligned(part.bytes());
  }
  return all;
}

}  // namespace sftrun::model
