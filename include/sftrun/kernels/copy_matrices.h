#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Copies of many matrices in one launch. CUDA only.
namespace sftrun::kernels {

/// to = scale * from. The row stride of `to` may exceed its row length.
struct MatrixCopy {
  at::Tensor from, to;
  double scale = 1;
};

/// The device table of pointers and sizes that `copy_matrices` reads.
at::Tensor copy_table(const std::vector<MatrixCopy>& copies);
/// Changes the addresses in the table: all matrices have moved.   @param from, to by so many bytes
void move_table(const at::Tensor& table, int64_t from, int64_t to);
/// Performs all copies in one launch.   @param like one of the matrices
void copy_matrices(const at::Tensor& table, const at::Tensor& like);

}  // namespace sftrun::kernels
