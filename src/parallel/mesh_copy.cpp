#include "sftrun/parallel/mesh_copy.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace sftrun::parallel {

MeshCopy::MeshCopy(MeshGroups& groups, Strategy& strategy, at::Device device, bool gathers_units)
    : comm_(groups.comm()),
      strategy_(strategy),
      copy_(groups.along({Axis::kPp, Axis::kTp})),
      shards_(groups.along(groups.mesh().shard_axes())),
      device_(device),
      gathers_units_(gathers_units),
      head_((groups.mesh().size(Axis::kPp) - 1) * groups.mesh().size(Axis::kTp)) {}

void MeshCopy::await_call() {
  if (copy_.size() > 1) comm_.await_call(copy_.ranks().front());
}

void MeshCopy::call() {
  if (copy_.size() > 1) comm_.call();
}

int64_t MeshCopy::max_of_shards(int64_t value) {
  if (shards_.size() == 1 || !gathers_units_) return value;
  const at::Tensor own = at::tensor({value}, at::kLong).to(device_),
                   all = at::empty({shards_.size()}, own.options());
  shards_.all_gather_into(all, own);
  const auto largest = all.max().item<int64_t>();
  comm_.throw_if_failed();
  return largest;
}

/// Most messages are short, and go in one part with their length; the rest of others follows.
std::string MeshCopy::from(const std::string& text, int root) {
  if (copy_.size() == 1) return text;
  constexpr size_t kFirst = 1024;  // bytes with the length
  constexpr size_t kBeginning = kFirst - sizeof(uint64_t);
  const bool is_root = copy_.rank() == root;
  at::Tensor first = at::zeros({kFirst}, at::kByte);
  if (is_root) {
    const uint64_t size = text.size();
    std::memcpy(first.data_ptr(), &size, sizeof(size));
    std::memcpy(first.data_ptr<uint8_t>() + sizeof(size), text.data(),
                std::min(text.size(), kBeginning));
  }
  first = first.to(device_);
  copy_.broadcast(first, root);
  if (is_root && text.size() <= kBeginning) return text;
  first = first.cpu();
  comm_.throw_if_failed();
  uint64_t size = 0;
  std::memcpy(&size, first.data_ptr(), sizeof(size));
  std::string received(size, '\0');
  std::memcpy(received.data(), first.data_ptr<uint8_t>() + sizeof(size),
              std::min<size_t>(size, kBeginning));
  if (size <= kBeginning) return received;
  at::Tensor rest = at::empty({static_cast<int64_t>(size - kBeginning)}, at::kByte);
  if (is_root) std::memcpy(rest.data_ptr(), text.data() + kBeginning, size - kBeginning);
  rest = rest.to(device_);
  copy_.broadcast(rest, root);
  if (is_root) return text;
  rest = rest.cpu();
  comm_.throw_if_failed();
  std::memcpy(received.data() + kBeginning, rest.data_ptr(), size - kBeginning);
  return received;
}

}  // namespace sftrun::parallel
