#include "sftrun/layers/unit.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <algorithm>

#include "sftrun/core/error.h"

namespace sftrun::layers {
namespace {

constexpr int64_t kBlockAlignment = 256;  // bytes; every kernel's loads are aligned then

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// A storage and its place in the packed buffer.
struct Block {
  const c10::StorageImpl* storage;
  int64_t begin;  // bytes
};

at::Tensor bytes_of(const c10::Storage& storage) {
  return at::from_blob(const_cast<void*>(storage.data()), {static_cast<int64_t>(storage.nbytes())},
                       at::TensorOptions().dtype(at::kByte).device(storage.device()));
}

}  // namespace

void release_memory(const at::Tensor& flat) {
  c10::StorageImpl* storage = flat.storage().unsafeGetStorageImpl();
  SFTRUN_CHECK_EQ(static_cast<size_t>(flat.nbytes()), storage->nbytes());
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, flat.device()));
}

void reserve_memory(const at::Tensor& flat) {
  c10::StorageImpl* storage = flat.storage().unsafeGetStorageImpl();
  if (storage->data() != nullptr || storage->nbytes() == 0) return;
  storage->set_data_ptr_noswap(
      c10::GetAllocator(flat.device().type())->allocate(storage->nbytes()));
}

void FrozenStorage::add(const at::Tensor& tensor) {
  SFTRUN_CHECK(!bytes_.defined());
  if (tensor.defined() && tensor.numel() > 0) tensors_.push_back(tensor);
}

void FrozenStorage::pack(int64_t multiple) {
  if (tensors_.empty() || bytes_.defined()) return;
  std::vector<Block> blocks;
  int64_t size = 0;
  const auto block_of = [&](const at::Tensor& tensor) {
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    return std::find_if(blocks.begin(), blocks.end(),
                        [&](const Block& block) { return block.storage == storage; });
  };
  for (const at::Tensor& tensor : tensors_) {
    if (block_of(tensor) != blocks.end()) continue;
    blocks.push_back({tensor.storage().unsafeGetStorageImpl(), size});
    size += rounded_up(static_cast<int64_t>(tensor.storage().nbytes()), kBlockAlignment);
  }
  bytes_ = at::zeros({rounded_up(size, multiple)},
                     at::TensorOptions().dtype(at::kByte).device(tensors_.front().device()));
  std::vector<int64_t> begins;  // of each tensor, before any is moved: moving frees storages
  for (const at::Tensor& tensor : tensors_) {
    const int64_t begin = block_of(tensor)->begin;
    const at::Tensor source = bytes_of(tensor.storage());
    bytes_.narrow(0, begin, source.numel()).copy_(source);
    begins.push_back(begin + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    c10::TensorImpl* impl = tensors_[i].unsafeGetTensorImpl();
    impl->set_allow_tensor_metadata_change(true);
    impl->set_storage_keep_dtype(bytes_.storage());
    impl->set_storage_offset(begins[i] / static_cast<int64_t>(tensors_[i].itemsize()));
  }
}

}  // namespace sftrun::layers
