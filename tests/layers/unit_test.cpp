#include "sftrun/layers/unit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "sftrun/layers/parameter.h"

namespace sftrun::layers {
namespace {

TEST(FrozenStorage, PacksTensorsOfEveryFormatInPlace) {
  const at::Tensor dense = at::arange(10, at::kFloat).view({2, 5}),
                   half = at::arange(7, at::kBFloat16), codes = at::arange(33, at::kByte),
                   view = dense.narrow(0, 1, 1), copy_of_handle = half;
  FrozenStorage storage;
  for (const at::Tensor& tensor : {dense, half, codes, view, at::Tensor(), at::empty({0})})
    storage.add(tensor);
  EXPECT_EQ(storage.tensors().size(), 4U);
  storage.place(3);
  EXPECT_EQ(storage.bytes().storage().data(), nullptr);
  reserve_memory(storage.bytes());
  storage.read(0, storage.bytes());
  storage.forget_sources();
  EXPECT_EQ(storage.bytes().numel() % 3, 0);
  EXPECT_TRUE(at::equal(dense, at::arange(10, at::kFloat).view({2, 5})));
  EXPECT_TRUE(at::equal(view, at::arange(5, 10, at::kFloat).view({1, 5})));
  EXPECT_TRUE(at::equal(copy_of_handle, at::arange(7, at::kBFloat16)));
  EXPECT_TRUE(at::equal(codes, at::arange(33, at::kByte)));
  for (const at::Tensor& tensor : {dense, half, codes, view}) {
    EXPECT_TRUE(tensor.storage().is_alias_of(storage.bytes().storage()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % tensor.itemsize(), 0U);
  }
  // What was released comes back in the same places.
  const at::Tensor bytes = storage.bytes().clone();
  release_memory(storage.bytes());
  EXPECT_EQ(storage.bytes().storage().data(), nullptr);
  reserve_memory(storage.bytes());
  storage.bytes().copy_(bytes);
  EXPECT_TRUE(at::equal(view, at::arange(5, 10, at::kFloat).view({1, 5})));
  EXPECT_TRUE(at::equal(codes, at::arange(33, at::kByte)));
}

/// Any range of the buffer is what the whole has there, and a tensor that is not in memory is asked
/// for no more bytes than the range has of it.
TEST(FrozenStorage, ReadsRangesOfTensorsThatAreNotInMemory) {
  const at::Tensor dense = at::arange(100, at::kInt), values = at::arange(200, at::kByte),
                   unread = without_memory({200}, at::kByte, at::kCPU);
  EXPECT_EQ(unread.storage().data(), nullptr);
  size_t bytes_read = 0;
  FrozenStorage storage;
  storage.add(dense);
  storage.add_unread(unread, [&](int64_t begin, std::span<std::byte> to) {
    std::memcpy(to.data(), values.const_data_ptr<uint8_t>() + begin, to.size());
    bytes_read += to.size();
  });
  storage.place(FrozenStorage::kPartAlignment * 3);
  const int64_t size = storage.bytes().numel();
  const at::Tensor whole = at::full({size}, 7, at::kByte);
  storage.read(0, whole);
  EXPECT_EQ(std::exchange(bytes_read, 0), 200U);
  for (const int64_t parts : {2, 3}) {
    std::vector<at::Tensor> read;
    for (int64_t part = 0; part < parts; ++part) {
      read.push_back(at::full({size / parts}, 7, at::kByte));
      storage.read(part * (size / parts), read.back());
    }
    EXPECT_TRUE(at::equal(at::cat(read), whole));
    EXPECT_EQ(std::exchange(bytes_read, 0), 200U);
  }
  reserve_memory(storage.bytes());
  storage.bytes().copy_(whole);
  EXPECT_TRUE(at::equal(unread, values));
  EXPECT_TRUE(at::equal(dense, at::arange(100, at::kInt)));
}

TEST(FrozenStorage, OfAUnitWithoutFrozenTensors) {
  FrozenStorage storage;
  storage.place();
  EXPECT_FALSE(storage.bytes().defined());
}

/// Three units, of which the second does not train.
ParameterStore store_of(BufferLayout layout, at::ScalarType dtype) {
  ParameterStore store;
  store.add("a", {3}, 0, true);
  store.add("b", {2, 20}, 0, true);
  store.add("c", {5}, 2, false);
  store.allocate(dtype, at::kCPU, layout);
  if (layout.is_per_unit)
    for (int64_t unit = 0; unit < 3; ++unit) store.reserve_unit(unit);
  return store;
}

TEST(ParameterStore, OneBufferOrOneForEachUnit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ParameterStore one = store_of({}, dtype);
    EXPECT_EQ(one.unit_range(0), (std::pair<int64_t, int64_t>{0, 64}));
    EXPECT_EQ(one.unit_range(1), (std::pair<int64_t, int64_t>{0, 0}));
    EXPECT_EQ(one.unit_range(2), (std::pair<int64_t, int64_t>{64, 80}));
    EXPECT_EQ(one.buffers_of(1), nullptr);
    EXPECT_EQ(one.buffers_of(0), one.buffers_of(2));

    ParameterStore each = store_of(BufferLayout::per_unit(), dtype);
    EXPECT_EQ(each.unit_range(2), (std::pair<int64_t, int64_t>{0, 16}));
    EXPECT_NE(each.buffers_of(0), each.buffers_of(2));
    EXPECT_EQ(each.buffers_of(0)->master.numel(), 64);
    EXPECT_EQ(each.buffers_of(2)->compute.scalar_type(), dtype);
    EXPECT_EQ(each.buffers_of(2)->compute.is_same(each.buffers_of(2)->master), dtype == at::kFloat);
    each.find("c")->master.detach().fill_(2);
    each.refresh_compute();
    EXPECT_EQ(each.buffers_of(2)->compute.sum().item<float>(), 10);
    each.find("b")->grad.fill_(1);
    each.zero_grad();
    EXPECT_EQ(each.buffers_of(0)->grad.sum().item<float>(), 0);
  }
}

}  // namespace
}  // namespace sftrun::layers
