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

void check_part_rates(Checks& checks) {
  constexpr const char* kKey = "train.part_learning_rates";
  const RunConfig& run = checks.run();
  for (const ModelPart part : kModelParts) {
    const auto rate = run.train.part_learning_rates[part];
    if (!rate) continue;
    if (part == ModelPart::kLanguage)
      checks.error(fmt::format("`{}` has a rate for language", kKey), {kKey},
                   fmt::format("set train.learning_rate: {} in its place", *rate));
    else if (!run.tuning.train_parts.trains(part))
      checks.error(
          fmt::format("`{}` has a rate for {}, which does not train", kKey, part_name(part)),
          {kKey, "tuning.train_parts"},
          fmt::format("add {0} to tuning.train_parts, or remove {0} from part_learning_rates",
                      part_name(part)));
    else if (run.train.learning_rate == 0.0)
      checks.error(fmt::format("`{}` cannot be used with a `train.learning_rate` of 0", kKey),
                   {kKey, "train.learning_rate"},
                   "set train.learning_rate above 0, and leave out of tuning.train_parts what is "
                   "frozen");
  }
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
  check_part_rates(checks);
  check_save_every(checks, checks.run().train.save_every);
}

}  // namespace sftrun::config::relations
