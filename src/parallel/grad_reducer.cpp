#include "sftrun/parallel/grad_reducer.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"

namespace sftrun::parallel {

GradReducer::GradReducer(Group ranks, at::Tensor flat_grad,
                         std::vector<std::pair<int64_t, int64_t>> ranges, int64_t bucket_cap_bytes,
                         at::ScalarType sent_as)
    : ranks_(std::move(ranks)),
      flat_grad_(std::move(flat_grad)),
      ranges_(std::move(ranges)),
      bucket_cap_elements_(
          std::max<int64_t>(1, bucket_cap_bytes / static_cast<int64_t>(c10::elementSize(sent_as)))),
      sent_as_(sent_as) {}

void GradReducer::unit_ready(int64_t unit) {
  const auto [begin, end] = ranges_.at(static_cast<size_t>(unit));
  if (begin == end) return;
  if (begin_ == end_) {
    end_ = end;
  } else {
    SFTRUN_CHECK_EQ(end, begin_);  // units complete from the last to the first
  }
  begin_ = begin;
  if (end_ - begin_ >= bucket_cap_elements_) flush();
}

void GradReducer::flush() {
  if (begin_ == end_) return;
  const at::Tensor bucket = flat_grad_.narrow(0, begin_, end_ - begin_);
  const bool is_rounded = sent_as_ != at::kFloat && ranks_.size() > 1;
  if (is_rounded) rounded_.push_back({bucket.to(sent_as_), bucket});
  ranks_.all_reduce_async(is_rounded ? rounded_.back().sent : bucket);
  begin_ = end_ = 0;
}

void GradReducer::finish() {
  flush();
  ranks_.wait_all();
  for (Rounded& one : rounded_) one.bucket.copy_(one.sent);
  rounded_.clear();
}

}  // namespace sftrun::parallel
