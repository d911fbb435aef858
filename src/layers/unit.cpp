#include "sftrun/layers/unit.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/rounding.h"

namespace sftrun::layers {
namespace {

constexpr int64_t kBlockAlignment = 256;  // bytes; every kernel's loads are aligned then

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

void exchange_memory(const at::Tensor& one, const at::Tensor& other) {
  c10::StorageImpl *first = one.storage().unsafeGetStorageImpl(),
                   *second = other.storage().unsafeGetStorageImpl();
  SFTRUN_CHECK_EQ(first->nbytes(), second->nbytes());
  SFTRUN_CHECK(first->device() == second->device());
  c10::DataPtr memory = first->set_data_ptr(c10::DataPtr(nullptr, first->device()));
  first->set_data_ptr_noswap(second->set_data_ptr(std::move(memory)));
}

at::Tensor without_memory(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  // A storage without memory (an allocator may give some for no bytes), of the tensor's size.
  const at::Tensor flat = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  c10::StorageImpl* storage = flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, flat.device()));
  storage->set_nbytes(static_cast<size_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype));
  flat.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return flat;
}

FrozenStorage::Source* FrozenStorage::source_of(const at::Tensor& tensor) {
  const auto found = std::find_if(sources_.begin(), sources_.end(), [&](const Source& source) {
    return source.storage.is_alias_of(tensor.storage());
  });
  return found == sources_.end() ? nullptr : &*found;
}

void FrozenStorage::add_source(const at::Tensor& tensor, ReadBytes read) {
  SFTRUN_CHECK(!bytes_.defined());
  if (!tensor.defined() || tensor.numel() == 0) return;
  tensors_.push_back(tensor);
  if (source_of(tensor) == nullptr) sources_.push_back({tensor.storage(), std::move(read)});
}

void FrozenStorage::add(const at::Tensor& tensor) {
  add_source(tensor, nullptr);
}

void FrozenStorage::add_unread(const at::Tensor& tensor, ReadBytes read) {
  add_source(tensor, std::move(read));
}

void FrozenStorage::place(int64_t multiple) {
  if (tensors_.empty() || bytes_.defined()) return;
  int64_t size = 0;
  for (Source& source : sources_) {
    source.begin = size;
    size += rounded_up(source.size(), kBlockAlignment);
  }
  bytes_ = without_memory({rounded_up(size, multiple)}, at::kByte, tensors_.front().device());
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.storage().is_alias_of(bytes_.storage())) continue;  // registered twice
    const auto itemsize = static_cast<int64_t>(tensor.itemsize());
    const int64_t offset = source_of(tensor)->begin / itemsize + tensor.storage_offset();
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    impl->set_allow_tensor_metadata_change(true);
    impl->set_storage_keep_dtype(bytes_.storage());
    impl->set_storage_offset(offset);
  }
}

void FrozenStorage::read(int64_t begin, const at::Tensor& to) const {
  const int64_t end = begin + to.numel();
  int64_t done = begin;
  const auto pad_until = [&](int64_t next) {
    if (next > done) to.narrow(0, done - begin, next - done).zero_();
  };
  for (const Source& source : sources_) {
    const int64_t first = std::max(begin, source.begin),
                  last = std::min(end, source.begin + source.size());
    if (first >= last) continue;
    pad_until(first);
    done = last;
    const at::Tensor part = to.narrow(0, first - begin, last - first);
    if (!source.read) {
      part.copy_(bytes_of(source.storage).narrow(0, first - source.begin, last - first));
      continue;
    }
    const at::Tensor host = part.is_cpu() ? part : at::empty({last - first}, at::kByte);
    source.read(first - source.begin,
                {static_cast<std::byte*>(host.data_ptr()), static_cast<size_t>(last - first)});
    if (!part.is_cpu()) part.copy_(host);
  }
  pad_until(end);
}

}  // namespace sftrun::layers
