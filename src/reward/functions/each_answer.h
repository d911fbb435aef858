#pragma once

#include "sftrun/reward/rewards.h"

namespace sftrun::reward {

/// A function of one answer and its record.
class EachAnswer : public Function {
 public:
  std::vector<Value> values(std::span<const Answer> answers) final {
    std::vector<Value> all;
    all.reserve(answers.size());
    for (const Answer& answer : answers) all.push_back(value(answer));
    return all;
  }

 protected:
  virtual Value value(const Answer& answer) = 0;
};

}  // namespace sftrun::reward
