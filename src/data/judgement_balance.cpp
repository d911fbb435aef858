#include "judgement_balance.h"

#include "sftrun/config/objectives.h"

namespace sftrun::data {

std::string judgement_counts(const DatasetStats& stats) {
  if (stats.num_desirable + stats.num_undesirable == 0) return {};
  return fmt::format("{} desirable, {} undesirable", stats.num_desirable, stats.num_undesirable);
}

std::optional<std::string> one_sided_warning(const DatasetStats& stats) {
  if ((stats.num_desirable == 0) == (stats.num_undesirable == 0)) return std::nullopt;
  const bool is_desirable = stats.num_desirable > 0;
  return fmt::format(
      "data: all {} examples are {}: train.objective {} learns from the difference between "
      "desirable and undesirable answers; add {} ones, and check the labels",
      stats.num_desirable + stats.num_undesirable, is_desirable ? "desirable" : "undesirable",
      config::objectives_for(config::ExampleForm::kJudged),
      is_desirable ? "undesirable" : "desirable");
}

}  // namespace sftrun::data
