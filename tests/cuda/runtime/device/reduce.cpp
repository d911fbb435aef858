#include "reduce.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "report.h"

namespace stand_in {
namespace {

/// Two bytes that compute as a float: 16-bit formats are rounded to nearest, ties to even.
struct BFloat16 {
  uint16_t bits;
  operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static BFloat16 of(float value) {
    const auto whole = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return {static_cast<uint16_t>((whole >> 16) | 0x40)};
    return {static_cast<uint16_t>((whole + 0x7fff + ((whole >> 16) & 1)) >> 16)};
  }
};

struct Half {
  _Float16 value;
  operator float() const { return static_cast<float>(value); }
  static Half of(float value) { return {static_cast<_Float16>(value)}; }
};

template <typename T>
auto widened(const T& value) {
  if constexpr (std::is_arithmetic_v<T>)
    return value;
  else
    return static_cast<float>(value);
}

template <typename T, typename Wide>
T narrowed(Wide value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<T>(value);
  else
    return T::of(value);
}

template <typename Wide>
Wide applied(ncclRedOp_t op, Wide a, Wide b) {
  switch (op) {
    case ncclMax:
      return a > b ? a : b;
    case ncclMin:
      return a < b ? a : b;
    case ncclProd:
      return static_cast<Wide>(a * b);
    default:
      return static_cast<Wide>(a + b);
  }
}

/// Calls `body` with a value of the element's type.
template <typename Body>
void by_type(ncclDataType_t type, Body&& body) {
  switch (type) {
    case ncclFloat32:
      return body(float{});
    case ncclFloat64:
      return body(double{});
    case ncclBfloat16:
      return body(BFloat16{});
    case ncclFloat16:
      return body(Half{});
    case ncclInt8:
      return body(int8_t{});
    case ncclUint8:
      return body(uint8_t{});
    case ncclInt32:
      return body(int32_t{});
    case ncclUint32:
      return body(uint32_t{});
    case ncclInt64:
      return body(int64_t{});
    case ncclUint64:
      return body(uint64_t{});
    default:
      fail(text("NCCL: no arithmetic of ", name_of(type)));
  }
}

}  // namespace

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

const char* name_of(ncclDataType_t type) {
  constexpr const char* kNames[] = {"i8",  "u8",  "i32", "u32",  "i64",  "u64",
                                    "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
  require(type >= 0 && type < ncclNumTypes, "NCCL: type ", static_cast<int>(type));
  return kNames[type];
}

const char* name_of(ncclRedOp_t op) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg"};
  require(op >= 0 && op <= ncclAvg, "NCCL: operation ", static_cast<int>(op));
  return kNames[op];
}

void combine(void* into, const void* from, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  by_type(type, [&]<typename T>(T) {
    T* a = static_cast<T*>(into);
    const T* b = static_cast<const T*>(from);
    for (size_t i = 0; i < count; ++i)
      a[i] = narrowed<T>(applied<decltype(widened(T{}))>(op, widened(a[i]), widened(b[i])));
  });
}

void divide(void* values, size_t count, ncclDataType_t type, int by) {
  by_type(type, [&]<typename T>(T) {
    using Wide = decltype(widened(T{}));
    T* a = static_cast<T*>(values);
    for (size_t i = 0; i < count; ++i)
      a[i] = narrowed<T>(static_cast<Wide>(widened(a[i]) / static_cast<Wide>(by)));
  });
}

}  // namespace stand_in
