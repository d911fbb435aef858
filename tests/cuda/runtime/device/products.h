#pragma once

#include <driver_types.h>
#include <library_types.h>

#include <cstdint>
#include <string>

/// Products of matrices, which are checked and counted.
namespace stand_in {

/// As stored: columns that follow each other at a distance of `leading` elements.
struct Matrix {
  const void* data = nullptr;
  int64_t rows = 0, columns = 0, leading = 0;
  cudaDataType_t type = CUDA_R_32F;
  int64_t count = 1, stride = 0;  // of a batch
};

struct Product {
  std::string op;          ///< the library's function
  std::string transposed;  ///< of A and B, as in "TN"
  int64_t m = 0, n = 0, k = 0;
  Matrix a = {}, b = {}, c = {};
  double beta = 0;
  cudaStream_t stream = nullptr;
};

/// Every operand lies in live device memory; the stream is the current device's.
void multiply(const Product& product);
/// A function of a library of which nothing but the name is known.
void note_product(const char* op, cudaStream_t stream);

const char* name_of(cudaDataType_t type);
/// What alpha and beta point to, as the type of the computation has it.
double scalar(const void* value, bool is_double, bool on_device);

}  // namespace stand_in
