#pragma once

#include <memory>
#include <optional>

#include "sftrun/kernels/quant.h"
#include "sftrun/weights/checkpoint.h"

namespace sftrun::model {

/// A matrix in the quantised format of its file. Uses the mapped bytes in place where possible and
/// then keeps the checkpoint alive; bytes that are unaligned, in another order or in several pieces
/// are copied.
/// @param shape [rows, columns], or [experts, rows, columns] with the experts' rows consecutive
/// @throws DataError if the file's code table differs from that of bitsandbytes
kernels::QuantizedMatrix stored_matrix(const weights::PackedMatrix& packed,
                                       const std::vector<int64_t>& shape, const std::string& name,
                                       std::shared_ptr<const weights::Checkpoint> checkpoint);

/// The codes and scales of a matrix, to be written to a file.   @pre it is on the CPU, not kGgml
/// @return views of its tensors
weights::CodedMatrix coded_view(const kernels::QuantizedMatrix& matrix);

/// Whether the file stores the matrix in this format, which is not one of ggml's.
bool is_stored_as(const weights::PackedMatrix& packed, QuantFormat format);

}  // namespace sftrun::model
