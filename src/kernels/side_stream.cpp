#include "sftrun/kernels/side_stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>

namespace sftrun::kernels {
namespace {

c10::impl::VirtualGuardImpl streams_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

SideStream::SideStream(at::Device device)
    : device_(device), stream_(streams_of(device).getStreamFromGlobalPool(device)) {}

void SideStream::follow_current() const {
  c10::Event event(device_.type());
  event.record(streams_of(device_).getStream(device_));
  event.block(stream_);
}

std::function<void()> SideStream::until_now() const {
  auto event = std::make_shared<c10::Event>(device_.type());
  event->record(stream_);
  return [event, device = device_] { event->block(streams_of(device).getStream(device)); };
}

void SideStream::synchronize() const {
  streams_of(device_).synchronizeStream(stream_);
}

}  // namespace sftrun::kernels
