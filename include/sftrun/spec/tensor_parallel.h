#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sftrun/core/tensor_slice.h"
#include "sftrun/spec/arch_spec.h"

/// How tensor parallelism divides a model (arXiv:1909.08053): attention and delta nets by heads, MLPs
/// and each expert by inner channels, embedding and head by vocabulary. If there are more ranks than
/// heads of keys, consecutive ranks have copies of the same one, each with some of its queries.
namespace sftrun::spec {

/// The part of one rank.
struct TensorParallel {
  int64_t rank = 0, size = 1;
  /// Inner channels are divided in multiples of this: formats with blocks have no scale for a part of
  /// a block.
  int64_t multiple = 1;
};

/// @param place of parallel.tp in the configuration
/// @throws ConfigError naming what cannot be divided
void require_divisible(const ArchSpec& arch, const TensorParallel& tensor,
                       const std::string& place);

/// The indices of `size` of this rank, in multiples of `multiple`: equal parts, or as equal as
/// possible.   @pre multiple divides size
IndexRange range_of(int64_t size, int64_t multiple, const TensorParallel& tensor);
/// The tokens whose rows of embedding and head this rank has.
IndexRange vocabulary_of(const ArchSpec& arch, const TensorParallel& tensor);

/// The sizes of this rank's part: `tensor_specs` of it has the shapes of the parts.
/// @pre require_divisible
ArchSpec part_of(const ArchSpec& arch, const TensorParallel& tensor);

/// The slice of each divided tensor of the model, by name, in the dimensions of `TensorSpec::shape`.
/// Tensors that are not listed are whole on every rank.
std::map<std::string, TensorSlice> slices_of(const ArchSpec& arch, const TensorParallel& tensor);

}  // namespace sftrun::spec
