#pragma once

#include <ATen/core/Tensor.h>

/// Values of labelled rows [rows] and of their documents [documents]; all fp64.
namespace sftrun::train {

/// Sums of the rows' values over each document.   @param documents [rows] int64: of each row
at::Tensor sums_of_rows(const at::Tensor& values, const at::Tensor& documents,
                        int64_t num_documents);

class RowSums {
 public:
  /// @param documents [rows] int64: of each row   @param lengths [documents]: rows of each
  RowSums(at::Tensor documents, at::Tensor lengths);

  at::Tensor sums(const at::Tensor& of_rows) const;
  /// A document without rows has the mean 0.
  at::Tensor means(const at::Tensor& of_rows) const;
  /// The value of each row's document.
  at::Tensor to_rows(const at::Tensor& of_documents) const;

 private:
  at::Tensor documents_, lengths_;
};

}  // namespace sftrun::train
