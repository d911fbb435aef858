#include "sftrun/train/stop_agreement.h"

#include <algorithm>
#include <utility>

#include "sftrun/core/clock.h"

namespace sftrun::train {

StopAgreement::StopAgreement(parallel::Communicator& comm, std::function<int()> own_code,
                             int64_t least_apart)
    : comm_(comm),
      own_code_(std::move(own_code)),
      least_apart_(comm.world_size() == 1 ? 1 : least_apart),
      apart_(least_apart_) {}

int StopAgreement::next() {
  if (code_ != 0) return code_;
  if (comm_.world_size() == 1) return code_ = own_code_();
  if (left_ == 0) exchange();
  --left_;
  return code_;
}

/// Seconds that an iteration took, between the two last exchanges; 0: not measured yet. Both ends
/// are after an exchange, because on a GPU only that waits for what the host has queued.
double StopAgreement::own_pace() const {
  if (before_last_ == 0) return 0;
  return (last_end_ - before_last_) / static_cast<double>(last_apart_);
}

void StopAgreement::exchange() {
  const parallel::CollectiveCounts counts = comm_.counts();
  double pace = 0;
  for (const std::vector<double>& of_rank :
       comm_.all_gather({static_cast<double>(own_code_()), own_pace()})) {
    code_ = std::max(code_, static_cast<int>(of_rank[0]));
    pace = std::max(pace, of_rank[1]);
  }
  comm_.set_counts(counts);  // which are those of training
  before_last_ = std::exchange(last_end_, monotonic_seconds());
  last_apart_ = apart_;
  if (pace > 0) {
    const auto wanted = static_cast<int64_t>(std::min(kEvery_s / pace, 1e9));
    apart_ = std::clamp(wanted, least_apart_, 2 * apart_);
  }
  left_ = apart_;
}

}  // namespace sftrun::train
