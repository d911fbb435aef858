#include "axolotl_preference.h"

#include "templates.h"

namespace sftrun::foreign {

const ObjectiveInfo* axolotl_preference(const Conversion& conversion) {
  return preference_objective(conversion, conversion.text_of("rl"), "dpo_loss_type");
}

void axolotl_objective(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (const ObjectiveInfo* objective = axolotl_preference(conversion))
    return conversion.set(key, "train.objective", std::string(objective->name));
  refuse_objective(conversion, key);
}

/// Without `rl` it is read as dpo's.
void axolotl_loss(Conversion& conversion, const SourceKey& key) {
  set_loss(conversion, key, preference_objective(conversion, "dpo", key.name));
}

}  // namespace sftrun::foreign
