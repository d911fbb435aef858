#include "staged_moments.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace sftrun::train {
namespace {

c10::impl::VirtualGuardImpl streams_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

/// Makes `stream` wait for `event`, if it was recorded.
void wait_for(const std::optional<c10::Event>& event, const std::optional<c10::Stream>& stream) {
  if (event && stream && event->was_marked_for_recording()) event->block(*stream);
}

}  // namespace

StagedMoments::StagedMoments(at::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const auto streams = streams_of(device);
  in_ = streams.getStreamFromGlobalPool(device);
  out_ = streams.getStreamFromGlobalPool(device);
  for (Slot& slot : slots_) {
    for (auto* event : {&slot.arrived, &slot.updated, &slot.left}) event->emplace(device.type());
  }
}

StagedMoments::~StagedMoments() {
  try {
    finish();
  } catch (const c10::Error&) {  // the device is lost, with the copies in progress
  }
}

c10::Stream StagedMoments::current() const {
  return streams_of(device_).getStream(device_);
}

/// Waits until the previous part of this slot is back on the host. Parts are copied back in order,
/// so all earlier parts are there, too, and no moment is read before it was written.
void StagedMoments::bring(const Part& part, Slot& slot) {
  wait_for(slot.left, in_);
  slot.on_device.clear();
  const c10::OptionalStreamGuard guard(in_);
  for (size_t i = 0; i < part.size(); ++i) {
    const at::Tensor there = slot.memory[i]
                                 .narrow(0, 0, static_cast<int64_t>(part[i].nbytes()))
                                 .view(part[i].scalar_type())
                                 .view(part[i].sizes());
    there.copy_(part[i], /*non_blocking=*/true);
    slot.on_device.push_back(there);
  }
  if (in_) slot.arrived->record(*in_);
}

void StagedMoments::send_back(const Part& part, Slot& slot) {
  if (out_) slot.updated->record(current());
  wait_for(slot.updated, out_);
  const c10::OptionalStreamGuard guard(out_);
  for (size_t i = 0; i < part.size(); ++i) {
    at::Tensor here = part[i];
    here.copy_(slot.on_device[i], /*non_blocking=*/true);
  }
  if (out_) slot.left->record(*out_);
}

void StagedMoments::run(const std::vector<Part>& parts, const Update& update) {
  reserve(parts);
  for (size_t i = 0; i <= parts.size(); ++i) {
    if (i < parts.size()) bring(parts[i], slots_[i % 2]);
    if (i == 0) continue;
    Slot& slot = slots_[(i - 1) % 2];
    if (in_) wait_for(slot.arrived, current());
    update(i - 1, slot.on_device);
    send_back(parts[i - 1], slot);
  }
}

/// Called before the first copy, because reallocating would free memory that a copy still uses.
void StagedMoments::reserve(const std::vector<Part>& parts) {
  for (size_t part = 0; part < parts.size(); ++part) {
    std::vector<at::Tensor>& memory = slots_[part % 2].memory;
    memory.resize(std::max(memory.size(), parts[part].size()));
    for (size_t i = 0; i < parts[part].size(); ++i) {
      const at::Tensor& on_host = parts[part][i];
      const auto bytes = static_cast<int64_t>(on_host.nbytes());
      if (memory[i].defined() && memory[i].numel() >= bytes) continue;
      finish();
      memory[i] = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
    }
    // The allocator may return memory that queued work still uses, so copies wait for that work.
    Slot& slot = slots_[part % 2];
    if (in_) slot.updated->record(current());
    wait_for(slot.updated, in_);
  }
}

/// Waits for both streams: if an update threw, a part may still be being copied to the device.
void StagedMoments::finish() {
  for (const auto& stream : {in_, out_})
    if (stream) streams_of(device_).synchronizeStream(*stream);
}

uint64_t StagedMoments::device_bytes() const {
  uint64_t total = 0;
  for (const Slot& slot : slots_)
    for (const at::Tensor& memory : slot.memory) total += memory.nbytes();
  return total;
}

}  // namespace sftrun::train
