#include "sftrun/layers/joint_linears.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <vector>

#include "sftrun/kernels/quant.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/layers/unit.h"

namespace sftrun::layers {
namespace {

constexpr int64_t kIn = 24;

/// Two linears with biases, the first with an adapter of rank 3.
struct Pair {
  Linear first, second;
  ParameterStore store;

  explicit Pair(bool in_fp8) {
    store.add("a", {3, kIn}, 0, true);
    store.add("b", {5, 3}, 0, true);
    store.allocate(at::kBFloat16, at::kCPU);
    first.lora.emplace();
    first.lora->a = &store.parameters()[0], first.lora->b = &store.parameters()[1];
    fill(first, 5, in_fp8);
    fill(second, 7, in_fp8);
  }
  std::vector<Linear*> linears() { return {&first, &second}; }

 private:
  static void fill(Linear& linear, int64_t rows, bool in_fp8) {
    const at::Tensor weight = at::arange(rows * kIn, at::kFloat).view({rows, kIn}).add(rows);
    linear.bias = at::arange(rows, at::kBFloat16);
    if (in_fp8)
      linear.quantized = kernels::quantize(weight, {.format = QuantFormat::kFp8});
    else
      linear.weight = weight.to(at::kBFloat16);
  }
};

/// Takes the memory of a tensor, whose bytes are then read.
void unread_tensor(at::Tensor& tensor, UnreadStorages& unread) {
  const at::Tensor bytes = tensor.contiguous().view({-1}).view(at::kByte);
  tensor = without_memory(tensor.sizes(), tensor.scalar_type(), at::kCPU);
  unread[tensor.storage().unsafeGetStorageImpl()] = [bytes](int64_t begin,
                                                            std::span<std::byte> to) {
    ASSERT_LE(begin + static_cast<int64_t>(to.size()), bytes.numel());
    std::memcpy(to.data(), bytes.const_data_ptr<uint8_t>() + begin, to.size());
  };
}

std::vector<at::Tensor> tensors_of(const JointLinears& joint) {
  std::vector<at::Tensor> all = {joint.bias};
  for (const Linear* linear : joint.members) all.push_back(linear->bias);
  if (joint.whole.defined()) {
    for (const at::Tensor& tensor : {joint.whole, joint.a, joint.b}) all.push_back(tensor);
    for (const Linear* linear : joint.members) all.push_back(linear->weight);
    return all;
  }
  for (const at::Tensor& tensor : joint.fp8->tensors()) all.push_back(tensor);
  for (const Linear* linear : joint.members)
    for (const at::Tensor& tensor : linear->quantized->tensors()) all.push_back(tensor);
  return all;
}

/// Weights that are not in memory get the places and bytes of those that are, whatever range of the
/// unit's bytes a rank reads. One of the weights is in memory.
TEST(JointLinears, OfWeightsThatAreNotInMemory) {
  for (const bool in_fp8 : {false, true}) {
    UnreadStorages unread;
    Pair read(in_fp8), divided(in_fp8);
    for (Linear* linear : divided.linears()) unread_tensor(linear->bias, unread);
    unread_tensor(in_fp8 ? divided.second.quantized->packed : divided.second.weight, unread);
    const JointLinears expected = join(read.linears(), unread);
    const JointLinears joint = join(divided.linears(), unread);
    EXPECT_EQ(unread.size(), 2U) << "of the biases, and of the weights";

    FrozenStorage frozen;
    for (const at::Tensor& tensor : tensors_of(joint)) {
      const auto found = unread.extract(tensor.storage().unsafeGetStorageImpl());
      found.empty() ? frozen.add(tensor) : frozen.add_unread(tensor, found.mapped());
    }
    frozen.place(FrozenStorage::kPartAlignment * 30);
    const int64_t size = frozen.bytes().numel();
    reserve_memory(frozen.bytes());
    for (const int64_t parts : {1, 2, 3, 5, 30}) {
      frozen.bytes().fill_(7);
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t of_part = size / parts;
        frozen.read(part * of_part, frozen.bytes().narrow(0, part * of_part, of_part));
      }
      const std::vector<at::Tensor> found = tensors_of(joint), wanted = tensors_of(expected);
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], wanted[i])) << i << " of " << parts << " parts";
        EXPECT_EQ(found[i].strides(), wanted[i].strides());
        EXPECT_TRUE(found[i].storage().is_alias_of(frozen.bytes().storage()));
      }
    }
  }
}

}  // namespace
}  // namespace sftrun::layers
