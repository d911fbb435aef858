#include "sftrun/data/likely_objective.h"

#include "class_labels.h"
#include "nulls.h"
#include "sampled_answer.h"
#include "sftrun/data/sequence.h"

namespace sftrun::data {
namespace {

/// Numbers beside a conversation may be classes; true and false say whether its answer is good.
bool is_judged(const Json& record) {
  if (!has_judgement(record)) return false;
  const Json* label = value_of(record, "label");
  const bool is_number = label != nullptr && label->is_number();
  return value_of(record, "kto_tag") != nullptr || value_of(record, "completion") != nullptr ||
         (!is_number && value_of(record, "text") == nullptr);
}

}  // namespace

config::Objective likely_objective(const Json& record) {
  using enum config::Objective;
  if (is_preference(record)) return kDpo;
  if (has_reward(record)) return kGrpo;
  if (is_judged(record)) return kKto;
  return has_class(record) ? kClassify : kSft;
}

}  // namespace sftrun::data
