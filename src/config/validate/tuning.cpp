#include <fmt/format.h>

#include <array>

#include "choices.h"
#include "parse_field.h"
#include "sftrun/core/python_syntax.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "validate/checks.h"

namespace sftrun::config::relations {
namespace {

constexpr int64_t kMaxRank = 65536;
constexpr double kMaxAlpha = 1e6;

bool is_adapter(Run run) {
  return run.tuning.trains_adapter();
}
bool is_pissa(Run run) {
  return is_adapter(run) && run.tuning.lora.init == LoraInit::kPissa;
}
bool adapts_experts(Run run) {
  return is_adapter(run) && !run.tuning.lora.target_parameters.empty();
}

bool is_block_size(int64_t size) {
  constexpr int64_t kSmallest = 32, kLargest = 4096;
  return size >= kSmallest && size <= kLargest && (size & (size - 1)) == 0;
}

constexpr auto kModes = std::to_array<Rule>({
    {[](Run run) {
       return (run.tuning.quantises_base() || run.tuning.keeps_blocks()) && !is_adapter(run);
     },
     [](Run run) {
       return fmt::format("`tuning.quant` is {}, but quantised weights cannot be trained",
                          word_of(run.tuning.quant));
     },
     {"tuning.quant", "tuning.mode"},
     "set tuning.mode to qlora, or quant to none"},
    {[](Run run) {
       return run.tuning.mode == TuningMode::kQlora && run.tuning.quant == Quant::kNone;
     },
     "`tuning.mode` is qlora, but `tuning.quant` is none",
     {"tuning.mode", "tuning.quant"},
     "remove quant, or set tuning.mode to lora"},
    {[](Run run) { return !is_block_size(run.tuning.quant_block_size); },
     [](Run run) {
       return fmt::format("`tuning.quant_block_size` is {}", run.tuning.quant_block_size);
     },
     {"tuning.quant_block_size"},
     "write 32, 64, 128, 256, 512, 1024, 2048 or 4096"},
    {[](Run run) {
       return run.tuning.mode == TuningMode::kPartial && run.tuning.trainable.empty();
     },
     "`tuning.mode` is partial, but `tuning.trainable` names no parameters",
     {"tuning.mode"},
     "add `trainable:` below `tuning:`, for example ['mlp', 'norm']"},
});

constexpr auto kOfOtherModes = std::to_array<Rule>({
    {[](Run run) {
       return run.tuning.mode != TuningMode::kPartial && !run.tuning.trainable.empty();
     },
     "`tuning.trainable` is for mode partial only",
     {"tuning.trainable", "tuning.mode"},
     "set tuning.mode to partial, or remove trainable"},
    {[](Run run) { return !is_adapter(run) && !run.tuning.lora.init_from.empty(); },
     "`tuning.lora.init_from` is for modes lora and qlora only",
     {"tuning.lora.init_from", "tuning.mode"},
     "set tuning.mode to lora; or merge the adapter first (sftrun merge), set model.name to the "
     "result and remove init_from"},
    {[](Run run) { return !is_adapter(run) && run.train.loraplus_lr_ratio.has_value(); },
     "`train.loraplus_lr_ratio` is for modes lora and qlora only",
     {"train.loraplus_lr_ratio", "tuning.mode"},
     "remove it, or set tuning.mode to lora"},
    {[](Run run) {
       const LoraConfig& lora = run.tuning.lora;
       return is_adapter(run) && lora.target_modules.empty() && lora.target_parameters.empty();
     },
     "`tuning.lora.target_modules` is empty",
     {"tuning.lora.target_modules"},
     "use all-linear"},
});

bool trains_parts_in(Run run, PartTraining training) {
  return run.tuning.train_parts.any(training);
}
bool has_full_language(Run run) {
  return is_adapter(run) &&
         run.tuning.train_parts.training[ModelPart::kLanguage] == PartTraining::kFull;
}

constexpr auto kParts = std::to_array<Rule>({
    {[](Run run) {
       return run.tuning.mode == TuningMode::kFull && trains_parts_in(run, PartTraining::kLora);
     },
     "`tuning.train_parts` trains a part with LoRA, but `tuning.mode` is full",
     {"tuning.train_parts", "tuning.mode"},
     [](Run run) {
       return fmt::format("set tuning.mode to lora, or write the parts as a list: {}",
                          run.tuning.train_parts.list());
     }},
    {[](Run run) {
       return run.tuning.mode == TuningMode::kPartial &&
              (trains_parts_in(run, PartTraining::kLora) ||
               trains_parts_in(run, PartTraining::kFull));
     },
     "`tuning.train_parts` is a map, but with `tuning.mode` partial `trainable` says what trains",
     {"tuning.train_parts", "tuning.mode"},
     [](Run run) {
       return fmt::format("write the parts as a list: {}", run.tuning.train_parts.list());
     }},
    {has_full_language,
     [](Run run) {
       return fmt::format(
           "`tuning.train_parts` trains the language part in full, but `tuning.mode` is {}",
           word_of(run.tuning.mode));
     },
     {"tuning.train_parts", "tuning.mode"},
     [](Run run) {
       return fmt::format("set tuning.mode to full and train_parts to {}, or language to lora",
                          run.tuning.train_parts.list());
     }},
    {[](Run run) {
       return is_adapter(run) && !has_full_language(run) &&
              !trains_parts_in(run, PartTraining::kLora) &&
              trains_parts_in(run, PartTraining::kFull);
     },
     [](Run run) {
       return fmt::format("`tuning.mode` is {}, but `tuning.train_parts` trains no part with LoRA",
                          word_of(run.tuning.mode));
     },
     {"tuning.train_parts", "tuning.mode"},
     [](Run run) {
       return fmt::format("set tuning.mode to full, with train_parts: {}",
                          run.tuning.train_parts.list());
     }},
});

/// Combinations that PEFT refuses, too.
constexpr auto kVariants = std::to_array<Rule>({
    {[](Run run) { return adapts_experts(run) && run.tuning.lora.dora; },
     "`tuning.lora.dora` cannot be used with `target_parameters`",
     {"tuning.lora.dora", "tuning.lora.target_parameters"},
     "remove one of them; DoRA is not defined for experts"},
    {[](Run run) { return adapts_experts(run) && is_pissa(run); },
     "`tuning.lora.init` pissa cannot be used with `target_parameters`",
     {"tuning.lora.init", "tuning.lora.target_parameters"},
     "remove one of them; LoRA of experts always starts at zero"},
    {[](Run run) { return is_pissa(run) && !run.tuning.lora.init_from.empty(); },
     "`tuning.lora.init` is pissa, but `init_from` already sets the initial weights",
     {"tuning.lora.init", "tuning.lora.init_from"},
     "remove one of them"},
});

void check_targets(Checks& checks, const LoraConfig& lora) {
  const std::string& expression = lora.target_modules.expression;
  if (const std::string problem = regex_problem(expression); !problem.empty())
    checks.error(fmt::format("`tuning.lora.target_modules` is `{}`, which is not a regular "
                             "expression: {}",
                             excerpt(expression), problem),
                 {"tuning.lora.target_modules"},
                 "write it as for Python's re, or a list of names: [q_proj, v_proj]");
  for (const std::string& target : lora.target_modules.names) {
    if (is_expression(target)) {
      checks.error(
          fmt::format("`tuning.lora.target_modules` has `{}` in a list, where names are compared "
                      "as they are written",
                      excerpt(target)),
          {"tuning.lora.target_modules"},
          "write the regular expression alone, without brackets around it: target_modules: '…'");
      continue;
    }
    if (target.find(',') == std::string::npos) continue;
    checks.error(
        fmt::format("`tuning.lora.target_modules` has `{}`, which is not the name of a module",
                    excerpt(target)),
        {"tuning.lora.target_modules"},
        excerpt(fmt::format("write a list: [{}]", join(split(target, ','), ", "))));
  }
}

void check_expression(Checks& checks, const char* key, const std::string& expression,
                      const std::string& problem) {
  if (problem.empty()) return;
  checks.error(fmt::format("`{}` has `{}`, which is not a regular expression: {}", key,
                           excerpt(expression), problem),
               {key}, "write the name of a module, or its end: o_proj");
}

void check_pattern(Checks& checks, const nlohmann::ordered_json& pattern, const char* key,
                   bool whole) {
  for (const auto& [name, value] : pattern.items()) {
    const bool fits =
        whole ? value.is_number_integer() && value.get<int64_t>() >= 1 &&
                    value.get<int64_t>() <= kMaxRank
              : value.is_number() && value.get<double>() > 0 && value.get<double>() <= kMaxAlpha;
    if (!fits) {
      checks.error(fmt::format("`{}` is {} for `{}`", key, shown(value), excerpt(name)), {key},
                   whole ? fmt::format("write a whole number from 1 to {}", kMaxRank)
                         : fmt::format("write a number above 0 and at most {}", kMaxAlpha));
    }
    check_expression(checks, key, name, peft_key_problem(name));
  }
}

}  // namespace

void check_tuning(Checks& checks) {
  const TuningConfig& tuning = checks.run().tuning;
  checks.require(kModes);
  for (const std::string& pattern : tuning.trainable)
    check_expression(checks, "tuning.trainable", pattern, regex_problem(pattern));
  checks.require(kOfOtherModes);
  checks.require(kParts);
  if (!tuning.trains_adapter()) return;
  check_targets(checks, tuning.lora);
  checks.require(kVariants);
  check_pattern(checks, tuning.lora.rank_pattern, "tuning.lora.rank_pattern", /*whole=*/true);
  check_pattern(checks, tuning.lora.alpha_pattern, "tuning.lora.alpha_pattern", /*whole=*/false);
}

}  // namespace sftrun::config::relations
