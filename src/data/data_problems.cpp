#include "sftrun/data/data_problems.h"

namespace sftrun::data {

void ProblemCollector::run(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataProblems& several) {
    problems_.insert(problems_.end(), several.problems.begin(), several.problems.end());
  } catch (const DataError& error) {
    if (!first_) first_ = error;
    problems_.push_back({error.message(), error.where(), error.fix()});
  }
}

void ProblemCollector::throw_if_any() const {
  if (problems_.size() > 1) throw DataProblems(problems_);
  if (first_) throw *first_;
}

}  // namespace sftrun::data
