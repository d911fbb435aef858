#include "sftrun/observe/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sftrun/core/units.h"

namespace sftrun::observe {
namespace {

constexpr double kWeightOfNewest = 0.1;  // a mean over about 2 / weight - 1 = 19 steps

}  // namespace

void ProgressMeter::add(const ProgressStep& step) {
  last_ = step;
  ++count_;
  // A plain mean until there are enough steps; the second step replaces the first, which includes
  // loading and warm-up.
  const double weight =
      count_ <= 2 ? 1.0 : std::max(kWeightOfNewest, 1.0 / static_cast<double>(count_ - 1));
  mean_tokens_ += weight * (static_cast<double>(step.tokens) - mean_tokens_);
  mean_seconds_ += weight * (step.step_seconds - mean_seconds_);
}

double ProgressMeter::tokens_per_second() const {
  return mean_seconds_ > 0 ? mean_tokens_ / mean_seconds_ : 0.0;
}

double ProgressMeter::seconds_left() const {
  return mean_seconds_ * static_cast<double>(std::max<int64_t>(total_steps_ - last_.step, 0));
}

std::string ProgressMeter::line() const {
  const std::string aux = last_.aux_loss ? fmt::format(" aux_loss {:.4f}", *last_.aux_loss) : "";
  const std::string metric = last_.value ? fmt::format(" {} {:.2f}", last_.word, *last_.value) : "";
  const double left = std::round(seconds_left());
  const std::string eta = last_.step >= total_steps_
                              ? ""
                              : fmt::format(" eta {}", left > 0 ? format_duration(left) : "< 1 s");
  return fmt::format("step {}/{} loss {:.4f}{}{} grad_norm {:.3f} lr {:.2e} tok/s {:.0f}{}",
                     last_.step, total_steps_, last_.loss, aux, metric, last_.grad_norm,
                     last_.learning_rate, tokens_per_second(), eta);
}

}  // namespace sftrun::observe
