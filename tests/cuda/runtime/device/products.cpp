#include "products.h"

#include "devices.h"
#include "memory.h"
#include "report.h"
#include "streams.h"

namespace stand_in {
namespace {

size_t bits_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
    case CUDA_C_32F:
    case CUDA_R_64I:
      return 64;
    case CUDA_C_64F:
      return 128;
    case CUDA_R_32F:
    case CUDA_R_32I:
      return 32;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 16;
    case CUDA_R_4F_E2M1:
      return 4;
    default:  // int8 and the kinds of FP8
      return 8;
  }
}

void check(const Matrix& matrix, const std::string& what) {
  if (matrix.rows == 0 || matrix.columns == 0 || matrix.count == 0) return;
  require(matrix.leading >= matrix.rows, what, ": rows ", matrix.rows, " at a distance of ",
          matrix.leading);
  const int64_t elements =
      (matrix.count - 1) * matrix.stride + (matrix.columns - 1) * matrix.leading + matrix.rows;
  require_live(matrix.data, (static_cast<size_t>(elements) * bits_of(matrix.type) + 7) / 8, what);
  require(device_of(matrix.data) == current_device(), what, ": an operand lies on device ",
          device_of(matrix.data).value_or(-1), " while device ", current_device(), " is current");
}

/// The part of a product's line that every kind has.
Stream& log_start(Event& event, cudaStream_t handle, const std::string& op) {
  Stream& stream = stream_of_current_device(handle, op.c_str());
  event.with("op", op)
      .with("device", current_device())
      .with("stream", stream.id)
      .with("stream_device", stream.device);
  return stream;
}

bool captured(cudaStream_t handle, const std::string& op) {
  return recorded(stream_of(handle, op.c_str()), {"kernel", {}});
}

}  // namespace

void multiply(const Product& product) {
  const auto lock = lock_tables();
  check(product.a, product.op + ", A");
  check(product.b, product.op + ", B");
  check(product.c, product.op + ", C");
  Event event(captured(product.stream, product.op) ? "captured_product" : "product");
  log_start(event, product.stream, product.op);
  event.with("transposed", product.transposed)
      .with("m", product.m)
      .with("n", product.n)
      .with("k", product.k)
      .with("batch", product.c.count)
      .with("a", name_of(product.a.type))
      .with("b", name_of(product.b.type))
      .with("c", name_of(product.c.type))
      .with("beta", product.beta);
}

void note_product(const char* op, cudaStream_t stream) {
  const auto lock = lock_tables();
  Event event(captured(stream, op) ? "captured_product" : "product");
  log_start(event, stream, op);
}

const char* name_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
      return "f64";
    case CUDA_R_32F:
      return "f32";
    case CUDA_R_16F:
      return "f16";
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_8F_E4M3:
      return "e4m3";
    case CUDA_R_8F_E5M2:
      return "e5m2";
    case CUDA_R_8I:
      return "i8";
    case CUDA_R_32I:
      return "i32";
    default:
      return "other";
  }
}

double scalar(const void* value, bool is_double, bool on_device) {
  if (value == nullptr || on_device || is_device_address(value)) return -1;  // not known here
  return is_double ? *static_cast<const double*>(value)
                   : static_cast<double>(*static_cast<const float*>(value));
}

}  // namespace stand_in
