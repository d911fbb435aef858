#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda/types.h"
#include "tolerances.h"

/// What the tests of CUDA kernels on the host share: memory without a byte to spare, numbers of
/// each type, runs in several orders.
namespace sftrun::kernels::cuda {
void PrintTo(Type type, std::ostream* out);
}
namespace sftrun::kernels::cuda::test {

inline constexpr Type kTypes[] = {Type::kFloat32, Type::kBFloat16, Type::kFloat16};
/// Those of tensor cores.
inline constexpr Type kSixteenBits[] = {Type::kBFloat16, Type::kFloat16};
/// Those that the CPU kernels have.
inline constexpr Type kTypesOfCpu[] = {Type::kFloat32, Type::kBFloat16};
const char* name_of(Type type);
constexpr size_t size_of(Type type) {
  return type == Type::kFloat32 ? 4 : 2;
}

/// Bytes on the heap, where AddressSanitizer sees one more than there are. Begins `shift` elements
/// behind an address aligned to 16 bytes.
class Memory {
 public:
  Memory(size_t elements, size_t element_size, int64_t shift);
  Memory(const Memory& other);
  Memory(Memory&& other) noexcept;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  /// Every byte 0xff: NaN in any type.
  static Memory nans(Type type, int64_t n, int64_t shift = 0) {
    return {static_cast<size_t>(n), size_of(type), shift};
  }
  template <typename T>
  static Memory untouched(int64_t n, int64_t shift = 0) {
    return {static_cast<size_t>(n), sizeof(T), shift};
  }
  /// Rounded to the type.
  static Memory of(Type type, const std::vector<float>& values, int64_t shift = 0);
  template <typename T>
  static Memory raw(const std::vector<T>& values, int64_t shift = 0) {
    Memory memory(values.size(), sizeof(T), shift);
    if (!values.empty()) std::memcpy(memory.data(), values.data(), values.size() * sizeof(T));
    return memory;
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::vector<T> to() const {
    std::vector<T> values(bytes_ / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), data_, values.size() * sizeof(T));
    return values;
  }
  bool operator==(const Memory& other) const;

 private:
  size_t bytes_, before_;
  char* block_;
  void* data_;
};

std::vector<float> floats(Type type, const Memory& memory);
/// Each to the nearest number of the type, as fp32.
std::vector<float> rounded(Type type, std::vector<float> values);

std::vector<float> normal(int64_t n, uint64_t seed, float scale = 1);
/// Rows with `gap` elements between them, which are NaN; there is none behind the last.
std::vector<float> rows_with_gaps(int64_t rows, int64_t columns, int64_t gap, uint64_t seed);
std::vector<uint8_t> random_bytes(int64_t n, uint64_t seed);

/// What `run` leaves, which must be the same whatever the order of threads and of blocks.
std::vector<Memory> in_every_order(const std::function<std::vector<Memory>()>& run);

using testing::AssertionResult;
/// Each within `roundings` of fp32 on numbers of its size, and one to `type`.
AssertionResult close(Type type, const Memory& actual, const std::vector<Exact>& expected,
                      double roundings);
/// The same of numbers that the CPU kernels made, which round, too, and whose exp is their own.
AssertionResult close_to_cpu(Type type, const Memory& actual, const std::vector<float>& cpu,
                             const std::vector<Exact>& expected, double roundings);
/// Equal to the bit, but any two NaN are equal.
AssertionResult same(Type type, const Memory& actual, const std::vector<float>& expected);

/// bf16 as the CPU kernels hold it.
inline const uint16_t* bf16(const Memory& memory) {
  return memory.as<uint16_t>();
}

/// Calls body(value) with a trace of what it is, up to the first that fails.
template <typename Cases, typename Body>
void for_each(const char* what, const Cases& cases, const Body& body) {
  for (const auto& each : cases) {
    testing::ScopedTrace trace(__FILE__, __LINE__,
                               std::string(what) + " " + testing::PrintToString(each));
    body(each);
    if (testing::Test::HasFailure()) return;
  }
}

/// Elements from an address aligned to 16 bytes: all that kernels may ask for is the elements' own
/// alignment, unless its launcher says more.
inline constexpr int64_t kShifts[] = {0, 1};

/// A suite for each type.
class ForTypes : public testing::TestWithParam<Type> {
 protected:
  Type type() const { return GetParam(); }
};
#define SFTRUN_FOR_TYPES_OF(suite, types)                                                    \
  class suite : public ForTypes {};                                                          \
  INSTANTIATE_TEST_SUITE_P(Types, suite, testing::ValuesIn(types), [](const auto& of_type) { \
    return std::string(name_of(of_type.param));                                              \
  })
#define SFTRUN_FOR_TYPES(suite) SFTRUN_FOR_TYPES_OF(suite, kTypes)

}  // namespace sftrun::kernels::cuda::test
