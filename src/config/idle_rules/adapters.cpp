#include <fmt/format.h>

#include "choices.h"
#include "idle_rules/rules.h"

namespace sftrun::config {

IdleRules rules_of_adapters() {
  std::vector<std::string> keys;
  const nlohmann::ordered_json settings = to_json(RunConfig{});
  for (const auto& [name, value] : settings["tuning"]["lora"].items())
    keys.push_back("tuning.lora." + name);
  return {{std::move(keys),
           [](const RunConfig& run, const RunFacts&) {
             return run.tuning.trains_adapter()
                        ? ""
                        : fmt::format(" with tuning.mode {}", word_of(run.tuning.mode));
           },
           nullptr, "tuning.lora"},
          {{"tuning.lora.dropout"}, [](const RunConfig& run, const RunFacts&) {
             const bool is_idle =
                 !run.train.objective_info().has_dropout && run.tuning.trains_adapter();
             return is_idle ? with_objective(run) + ", as in TRL" : "";
           }}};
}

}  // namespace sftrun::config
