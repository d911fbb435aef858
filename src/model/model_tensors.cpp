#include "model_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "sftrun/core/error.h"
#include "sftrun/layers/tensor_ranks.h"
#include "sftrun/spec/vision_tensors.h"

namespace sftrun::model {

ModelTensors::ModelTensors(const spec::ArchSpec& arch, const spec::TensorParallel& tensor,
                           bool with_vision)
    : tensors_(spec::tensor_specs(arch)), slices_(spec::slices_of(arch, tensor)) {
  if (with_vision) {
    std::vector<spec::TensorSpec> of_images =
        spec::vision_tensor_specs(*arch.vision, arch.hidden_size);
    std::move(of_images.begin(), of_images.end(), std::back_inserter(tensors_));
  }
  for (const spec::TensorSpec& spec : tensors_) by_name_[spec.name] = &spec;
}

TensorSlice moved_to(int64_t dim, const TensorSlice& slice) {
  return {.dim = dim, .whole_size = slice.whole_size, .ranges = slice.ranges};
}

const TensorSlice* ModelTensors::slice_of(const std::string& name) const {
  const auto found = slices_.find(name);
  return found == slices_.end() ? nullptr : &found->second;
}

namespace {

/// A slice of a tensor in the dimensions of [rows, columns], rows being all dimensions but the last.
TensorSlice slice_of_rows_or_columns(const TensorSlice& slice, const std::vector<int64_t>& shape) {
  const auto last = static_cast<int64_t>(shape.size()) - 1;
  if (slice.dim == last) return moved_to(1, slice);
  const int64_t times = slice.dim == 0 ? 1 : shape[0];
  SFTRUN_CHECK(last == 1 || slice.dim == 1);  // [rows, columns] or [experts, rows, columns]
  TensorSlice rows{.dim = 0, .whole_size = times * slice.whole_size, .ranges = {}};
  for (int64_t i = 0; i < times; ++i)
    for (const IndexRange& range : slice.ranges)
      rows.ranges.push_back({i * slice.whole_size + range.begin, range.count});
  return rows;
}

}  // namespace

/// The part of a tensor that this rank has. A view would keep the whole tensor in memory, unless
/// it is a mapped file, whose memory cannot be resized.
at::Tensor ModelTensors::part_of(const std::string& name, const at::Tensor& whole) const {
  const TensorSlice* slice = slice_of(name);
  if (slice == nullptr) return whole;
  const at::Tensor part = layers::part_of(whole, *slice);
  const bool keeps_whole = part.is_alias_of(whole) && whole.storage().resizable();
  return keeps_whole ? part.clone(at::MemoryFormat::Contiguous) : part.contiguous();
}

kernels::QuantizedMatrix ModelTensors::part_of(const std::string& name,
                                               const kernels::QuantizedMatrix& whole) const {
  const TensorSlice* slice = slice_of(name);
  if (slice == nullptr) return whole;
  const TensorSlice flat = slice_of_rows_or_columns(*slice, spec(name).shape);
  if (!whole.has_part(flat)) {
    throw ConfigError(
        fmt::format("tensor parallelism cannot divide {}: its format stores blocks of {} values",
                    name, whole.values_per_block()),
        "parallel.tp",
        "set parallel.tp to another number, or use, without parallel.tp, parallel.strategy fsdp");
  }
  return whole.part(flat);
}

}  // namespace sftrun::model
