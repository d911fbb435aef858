#pragma once

#include <memory>
#include <optional>

#include "sftrun/kernels/quant.h"
#include "sftrun/weights/checkpoint.h"

namespace sftrun::model {

/// A matrix in the form in which its file has it. Uses the file's bytes where they lie, and keeps
/// the checkpoint for that; copied are rows that the file has in another order.
/// @param shape [rows, columns], or [experts, rows, columns], whose rows follow each other
/// @throws DataError for codes that stand for other values than this version's
kernels::QuantizedMatrix stored_matrix(const weights::PackedMatrix& packed,
                                       const std::vector<int64_t>& shape, const std::string& name,
                                       std::shared_ptr<const weights::Checkpoint> checkpoint);

/// Whether the file has it in just this format of 4 bits.
bool is_stored_as(const weights::PackedMatrix& packed, kernels::QuantFormat format);

}  // namespace sftrun::model
