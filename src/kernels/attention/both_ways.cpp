#include "both_ways.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "sftrun/core/error.h"

namespace sftrun::kernels {

void write_key_ends(std::span<const RowSpan> both_ways, std::span<int32_t> ends) {
  std::iota(ends.begin(), ends.end(), 1);
  for (const RowSpan& span : both_ways)
    std::fill(ends.begin() + span.first, ends.begin() + span.end, span.end);
}

at::Tensor key_ends_of(const BatchMetadata& batch, int64_t rows, at::Device device) {
  if (device.is_cuda()) {
    TORCH_CHECK(batch.key_ends_device.defined() && batch.key_ends_device.numel() == rows,
                "key_ends_device is not of the batch's ", rows, " rows");
    return batch.key_ends_device;
  }
  at::Tensor ends = at::empty({rows}, at::kInt);
  write_key_ends(batch.both_ways, {ends.data_ptr<int32_t>(), static_cast<size_t>(rows)});
  return ends;
}

void require_spans(const BatchMetadata& batch) {
  SFTRUN_CHECK(!batch.is_for_graph);
  int32_t last_end = 0;
  for (const RowSpan& span : batch.both_ways) {
    SFTRUN_CHECK(last_end <= span.first && span.first < span.end);
    last_end = span.end;
    const auto end_of_document =
        std::upper_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), span.first);
    SFTRUN_CHECK(end_of_document != batch.cu_seqlens.end() && span.end <= *end_of_document);
  }
}

}  // namespace sftrun::kernels
