#include "sftrun/train/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sftrun/core/units.h"

namespace sftrun::train {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// @param value of each rank   @return their median without `rank`
double median_of_others(const std::vector<double>& values, size_t rank) {
  std::vector<double> others = values;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(rank));
  return median(std::move(others));
}

/// The part of a step in which the rank loses most.
Work slowest_part(const std::vector<WorkSeconds>& sums, size_t rank) {
  size_t slowest = 0;
  double most = 0;
  for (size_t part = 0; part < kStepWorks.size(); ++part) {
    std::vector<double> values;
    for (const WorkSeconds& sum : sums) values.push_back(sum[part]);
    const double excess = values[rank] - median_of_others(values, rank);
    if (excess > most) most = excess, slowest = part;
  }
  return kStepWorks[slowest];
}

}  // namespace

WorkSeconds WorkMeter::of_step() {
  WorkSeconds of_step{};
  if (activity_ == nullptr) return of_step;
  const std::array<double, kNumWorks> total = activity_->seconds_of_works();
  for (size_t i = 0; i < kStepWorks.size(); ++i) {
    const double seconds = total[static_cast<size_t>(kStepWorks[i])];
    of_step[i] = seconds - std::exchange(before_[i], seconds);
  }
  return of_step;
}

std::vector<std::string> StragglerWatch::add(const std::vector<WorkSeconds>& work) {
  if (work.size() < 2) return {};
  sums_.resize(work.size());
  slow_windows_.resize(work.size());
  for (size_t rank = 0; rank < work.size(); ++rank)
    for (size_t part = 0; part < kStepWorks.size(); ++part) sums_[rank][part] += work[rank][part];
  if (++steps_ < kWindowSteps) return {};
  std::vector<std::string> found = close_window();
  steps_ = 0;
  sums_.clear();
  return found;
}

std::vector<std::string> StragglerWatch::close_window() {
  std::vector<double> totals;
  for (const WorkSeconds& sum : sums_)
    totals.push_back(std::accumulate(sum.begin(), sum.end(), 0.0) / kWindowSteps);
  std::vector<std::string> found;
  for (size_t rank = 0; rank < totals.size(); ++rank) {
    const double others = median_of_others(totals, rank);
    const bool is_slow = totals[rank] > kFactor * others && totals[rank] - others > kMinExcessS;
    slow_windows_[rank] = is_slow ? slow_windows_[rank] + 1 : 0;
    if (slow_windows_[rank] < kWindows || !named_.insert(static_cast<int>(rank)).second) continue;
    found.push_back(
        fmt::format("rank {} is slow: its own work takes {:.1f} times that of the other ranks ({} "
                    "instead of {} "
                    "per step), most of the difference {}; the others wait for it in every step",
                    rank, totals[rank] / std::max(others, 1e-9), format_duration(totals[rank]),
                    format_duration(others), describe_work(slowest_part(sums_, rank))));
  }
  return found;
}

}  // namespace sftrun::train
