#include "support.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "emulator.h"

namespace sftrun::kernels::cuda {
void PrintTo(Type type, std::ostream* out) {
  *out << test::name_of(type);
}
}  // namespace sftrun::kernels::cuda

namespace sftrun::kernels::cuda::test {
namespace {

constexpr size_t kAligned = 16;

float load_one(Type type, const void* from, size_t i) {
  if (type == Type::kFloat32) return static_cast<const float*>(from)[i];
  if (type == Type::kBFloat16) return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
  return __half2float(static_cast<const __half*>(from)[i]);
}
void store_one(Type type, void* to, size_t i, float value) {
  if (type == Type::kFloat32)
    static_cast<float*>(to)[i] = value;
  else if (type == Type::kBFloat16)
    static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(value);
  else
    static_cast<__half*>(to)[i] = __float2half_rn(value);
}

/// Of the same sign where infinite, and none where none is.
bool is_near(double actual, double expected, double bound) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::fabs(actual - expected) <= bound;
}

AssertionResult differ(size_t i, double actual, double expected, double bound) {
  return testing::AssertionFailure()
         << "element " << i << " is " << actual << " instead of " << expected << ", off by "
         << actual - expected << " where " << bound << " is allowed";
}
AssertionResult sizes_differ(size_t actual, size_t expected) {
  return testing::AssertionFailure() << actual << " elements instead of " << expected;
}

}  // namespace

const char* name_of(Type type) {
  return type == Type::kFloat32 ? "fp32" : type == Type::kBFloat16 ? "bf16" : "fp16";
}

Memory::Memory(size_t elements, size_t element_size, int64_t shift)
    : bytes_(elements * element_size), before_(static_cast<size_t>(shift) * element_size) {
  // malloc's own alignment is 16 bytes, and it keeps the size to the byte for AddressSanitizer.
  block_ = static_cast<char*>(std::malloc(before_ + bytes_));
  if (reinterpret_cast<uintptr_t>(block_) % kAligned != 0) std::abort();
  std::memset(block_, 0xff, before_ + bytes_);
  data_ = block_ + before_;
}
Memory::Memory(const Memory& other) : Memory(other.bytes_, 1, static_cast<int64_t>(other.before_)) {
  std::memcpy(data_, other.data_, bytes_);
}
Memory::Memory(Memory&& other) noexcept
    : bytes_(other.bytes_), before_(other.before_), block_(other.block_), data_(other.data_) {
  other.block_ = nullptr;
}
Memory::~Memory() {
  std::free(block_);
}
bool Memory::operator==(const Memory& other) const {
  return bytes_ == other.bytes_ && std::memcmp(data_, other.data_, bytes_) == 0;
}

Memory Memory::of(Type type, const std::vector<float>& values, int64_t shift) {
  Memory memory(values.size(), size_of(type), shift);
  for (size_t i = 0; i < values.size(); ++i) store_one(type, memory.data_, i, values[i]);
  return memory;
}

std::vector<float> floats(Type type, const Memory& memory) {
  std::vector<float> values(memory.bytes() / size_of(type));
  for (size_t i = 0; i < values.size(); ++i) values[i] = load_one(type, memory.data(), i);
  return values;
}
std::vector<float> rounded(Type type, std::vector<float> values) {
  return floats(type, Memory::of(type, values));
}

std::vector<float> normal(int64_t n, uint64_t seed, float scale) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = distribution(random);
  return values;
}
std::vector<float> rows_with_gaps(int64_t rows, int64_t columns, int64_t gap, uint64_t seed) {
  const int64_t stride = columns + gap;
  std::vector<float> values = normal(rows == 0 ? 0 : rows * stride - gap, seed);
  for (size_t i = 0; i < values.size(); ++i)
    if (static_cast<int64_t>(i) % stride >= columns) values[i] = std::nanf("");
  return values;
}

std::vector<uint8_t> random_bytes(int64_t n, uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<uint8_t> bytes(static_cast<size_t>(n));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

std::vector<Memory> in_every_order(const std::function<std::vector<Memory>()>& run) {
  emulator::set_order(emulator::Order::kForward);
  std::vector<Memory> first = run();
  for (const auto order : {emulator::Order::kBackward, emulator::Order::kRandom}) {
    emulator::set_order(order);
    const std::vector<Memory> again = run();
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(again[i] == first[i])
          << "result " << i << " differs in "
          << (order == emulator::Order::kRandom ? "a random" : "the backward") << " order";
    }
  }
  emulator::set_order(emulator::Order::kForward);
  return first;
}

AssertionResult close(Type type, const Memory& actual, const std::vector<Exact>& expected,
                      double roundings) {
  const std::vector<float> values = floats(type, actual);
  if (values.size() != expected.size()) return sizes_differ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double allowed = bound(type, expected[i], roundings);
    if (!is_near(values[i], expected[i].value, allowed))
      return differ(i, values[i], expected[i].value, allowed);
  }
  return testing::AssertionSuccess();
}

AssertionResult close_to_cpu(Type type, const Memory& actual, const std::vector<float>& cpu,
                             const std::vector<Exact>& expected, double roundings) {
  const std::vector<float> values = floats(type, actual);
  if (values.size() != cpu.size()) return sizes_differ(values.size(), cpu.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double allowed = kCpuTimes * bound(type, expected[i], roundings) + kCpuLeast;
    if (!is_near(values[i], cpu[i], allowed)) return differ(i, values[i], cpu[i], allowed);
  }
  return testing::AssertionSuccess();
}

AssertionResult same(Type type, const Memory& actual, const std::vector<float>& expected) {
  const std::vector<float> values = floats(type, actual);
  if (values.size() != expected.size()) return sizes_differ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const bool both_none = std::isnan(values[i]) && std::isnan(expected[i]);
    if (!both_none && std::memcmp(&values[i], &expected[i], sizeof(float)) != 0)
      return differ(i, values[i], expected[i], 0);
  }
  return testing::AssertionSuccess();
}

}  // namespace sftrun::kernels::cuda::test
