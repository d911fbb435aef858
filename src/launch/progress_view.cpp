#include "progress_view.h"

#include <algorithm>
#include <cmath>

#include "live_view.h"
#include "sftrun/core/clock.h"

namespace sftrun::launch {
namespace {

/// Faster is not readable, and slower looks as if nothing happened.
constexpr double kMinBetweenDraws_s = 0.05, kMaxBetweenDraws_s = 1;

}  // namespace

void ProgressView::show() {
  if (!console_.is_terminal()) return;
  const double now = monotonic_seconds();
  for (const auto& worker : workers_) {
    if (!worker->take_status()) continue;
    has_news_ = true;
    if (worker == workers_.front()) told_at_ = now;
  }
  // Between steps the remaining time counts down.
  const double since_draw = now - drawn_at_;
  if (has_news_ ? since_draw < kMinBetweenDraws_s
                : drawn_at_ == 0 || since_draw < kMaxBetweenDraws_s)
    return;
  console_.set_live([this](TerminalSize size) { return view(size); });
  drawn_at_ = now;
  has_news_ = false;
}

std::vector<std::string> ProgressView::view(TerminalSize size) const {
  std::vector<RankStatus> ranks;
  for (const auto& worker : workers_)
    ranks.push_back({worker->rank(), worker->last_status().value_or(Status{})});
  Status& main = ranks.front().status;
  if (main.eta_s)
    main.eta_s = std::round(std::max(0.0, *main.eta_s - (monotonic_seconds() - told_at_)));
  return live_view(ranks, size);
}

void ProgressView::finish() {
  if (has_news_) console_.redraw();
  console_.keep_live();
}

void ProgressView::pause() {
  console_.keep_live();
  drawn_at_ = 0;
}

double ProgressView::period_s(double limit_s) const {
  double seconds = limit_s;
  if (has_news_) seconds = std::min(seconds, kMinBetweenDraws_s);
  if (drawn_at_ != 0) seconds = std::min(seconds, kMaxBetweenDraws_s);
  return seconds;
}

}  // namespace sftrun::launch
