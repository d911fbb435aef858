#include "sftrun/data/media_faults.h"

#include <algorithm>
#include <utility>

namespace sftrun::data {

DataError error_in_record(const MediaError& error, const std::string& record,
                          bool may_be_left_out) {
  std::string fix = error.fix();
  if (may_be_left_out && error.is_of_file())
    fix += "; or data.bad_records: skip goes on without the labels of this record";
  return DataError(error.message(),
                   error.where().empty() ? record : fmt::format("{}, {}", record, error.where()),
                   fix);
}

void MediaFaults::add(const MediaError& error) {
  const std::scoped_lock lock(mutex_);
  errors_.push_back(error);
}

std::vector<MediaError> MediaFaults::take() {
  const std::scoped_lock lock(mutex_);
  std::stable_sort(errors_.begin(), errors_.end(), [](const MediaError& a, const MediaError& b) {
    return a.document() < b.document();
  });
  return std::exchange(errors_, {});
}

int64_t document_key_of(const Batch& batch, int64_t row) {
  const auto after = std::upper_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), row);
  return batch.document_keys[static_cast<size_t>(after - batch.cu_seqlens.begin()) - 1];
}

}  // namespace sftrun::data
