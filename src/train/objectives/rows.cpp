#include "rows.h"

#include <ATen/ATen.h>

#include <utility>

namespace sftrun::train {

at::Tensor sums_of_rows(const at::Tensor& values, const at::Tensor& documents,
                        int64_t num_documents) {
  // Not index_add: on CUDA the order of its additions varies.
  const at::Tensor numbers = at::arange(num_documents, documents.options()).unsqueeze(1);
  return at::where(documents.unsqueeze(0) == numbers, values.unsqueeze(0), 0.0).sum(1);
}

RowSums::RowSums(at::Tensor documents, at::Tensor lengths)
    : documents_(std::move(documents)), lengths_(std::move(lengths)) {}

at::Tensor RowSums::sums(const at::Tensor& of_rows) const {
  return sums_of_rows(of_rows, documents_, lengths_.size(0));
}

at::Tensor RowSums::means(const at::Tensor& of_rows) const {
  return sums(of_rows) / lengths_.clamp_min(1);
}

at::Tensor RowSums::to_rows(const at::Tensor& of_documents) const {
  return of_documents.index_select(0, documents_);
}

}  // namespace sftrun::train
