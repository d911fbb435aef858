#include "sftrun/train/stop_agreement.h"

#include <algorithm>
#include <utility>

#include "sftrun/core/clock.h"

namespace sftrun::train {

namespace {

StopAgreement::Gather gather_of(parallel::Communicator& comm) {
  if (comm.world_size() == 1) return nullptr;
  return [&comm](const std::vector<double>& values) {
    const parallel::CollectiveCounts counts = comm.counts();
    auto gathered = comm.all_gather(values);
    comm.set_counts(counts);  // which are those of training
    return gathered;
  };
}

}  // namespace

StopAgreement::StopAgreement(parallel::Communicator& comm, std::function<int()> own_code,
                             int64_t min_apart)
    : StopAgreement(gather_of(comm), std::move(own_code), min_apart) {}

StopAgreement::StopAgreement(Gather gather, std::function<int()> own_code, int64_t min_apart)
    : gather_(std::move(gather)),
      own_code_(std::move(own_code)),
      min_apart_(gather_ ? min_apart : 1),
      apart_(min_apart_) {}

int StopAgreement::next() {
  if (code_ != 0) return code_;
  if (!gather_) return code_ = own_code_();
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
  double pace = 0;
  for (const std::vector<double>& of_rank :
       gather_({static_cast<double>(own_code_()), own_pace()})) {
    code_ = std::max(code_, static_cast<int>(of_rank[0]));
    pace = std::max(pace, of_rank[1]);
  }
  before_last_ = std::exchange(last_end_, monotonic_seconds());
  last_apart_ = apart_;
  if (pace > 0) {
    const auto wanted = static_cast<int64_t>(std::min(kEvery_s / pace, 1e9));
    apart_ = std::clamp(wanted, min_apart_, 2 * apart_);
  }
  left_ = apart_;
}

}  // namespace sftrun::train
