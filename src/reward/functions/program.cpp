#include <fmt/format.h>

#include "makers.h"
#include "outside_value.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/reward/outside_program.h"

namespace sftrun::reward {
namespace {

/// A program that keeps running between batches.
class ProgramReward : public Function {
 public:
  ProgramReward(const config::RewardSpec& spec, const Surroundings& surroundings)
      : name_(outside_name("program", spec)),
        program_({.name = name_,
                  .label = spec.label,
                  .command = spec.settings.at("command").get<std::string>(),
                  .where = spec.where,
                  .timeout_s = spec.settings.at("timeout").get<double>(),
                  .max_restarts = spec.settings.at("restarts").get<int64_t>(),
                  .answer = "one number",
                  .timeout_key = "timeout",
                  .should_stop = surroundings.should_stop,
                  .guard = surroundings.guard}) {}

  std::vector<Value> values(std::span<const Answer> answers) override {
    std::vector<std::string> lines;
    for (const Answer& answer : answers) lines.push_back(to_json_text(judged_record(answer)));
    const std::vector<std::string> said = program_.ask(lines);
    std::vector<Value> values(answers.size());
    for (size_t i = 0; i < answers.size(); ++i)
      if (const std::string fault = read_outside_line(said[i], values[i]); !fault.empty())
        throw DataError(fmt::format("{} answers {} with {}", name_, answers[i].where, fault),
                        program_.place(), program_.advice());
    return values;
  }

  void finish() override { program_.finish(); }

 private:
  std::string name_;
  OutsideProgram program_;
};

}  // namespace

std::unique_ptr<Function> make_program(const config::RewardSpec& spec,
                                       const Surroundings& surroundings) {
  return std::make_unique<ProgramReward>(spec, surroundings);
}

}  // namespace sftrun::reward
