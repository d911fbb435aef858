#include <fmt/format.h>

#include <array>

#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "validate/checks.h"

namespace sftrun::config::relations {
namespace {

constexpr auto kSchedules = std::to_array<Rule>({
    {[](Run run) {
       return run.train.warmup_ratio.has_value() && run.train.warmup_steps.has_value();
     },
     "`train.warmup_ratio` and `train.warmup_steps` are both set",
     {"train.warmup_ratio", "train.warmup_steps"},
     "keep one of them"},
});

/// A number alone would be seconds, where many mean steps.
void check_save_every(Checks& checks, const std::string& text) {
  const auto number = parse_double(text);
  if (!number || *number <= 0 || !parse_duration_s(text))
    return check_time(checks, "train.save_every", text, /*may_be_zero=*/true,
                      "write, for example, 30m");
  const auto steps = parse_int(text);
  checks.error(fmt::format("`train.save_every` is `{}`, a time without a unit", excerpt(text)),
               {"train.save_every"},
               steps ? fmt::format("write {}s; for steps, set train.save_steps: {} in its place",
                                   *steps, *steps)
                     : fmt::format("write {}s", excerpt(text)));
}

}  // namespace

void check_optimizer(Checks& checks) {
  const TrainConfig& train = checks.run().train;
  const OptimizerInfo& optimizer = optimizer_info(train.optimizer);
  if (optimizer.refusal == nullptr) return;
  const auto refusal = optimizer.refusal(train.resolved_momentum(), train.resolved_nesterov());
  if (refusal) checks.error(refusal->message, {refusal->key}, refusal->fix);
}

void check_schedule(Checks& checks) {
  checks.require(kSchedules);
  check_save_every(checks, checks.run().train.save_every);
}

}  // namespace sftrun::config::relations
