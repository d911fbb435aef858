#include "sftrun/config/answers_line.h"

#include <fmt/format.h>

#include "sftrun/config/server_url.h"
#include "sftrun/core/plural.h"

namespace sftrun::config {

std::string answers_line(const TrainConfig& train) {
  if (!train.writes_answers()) return {};
  const RolloutsConfig& rollouts = train.rollouts;
  const bool is_served = rollouts.is_by_server();
  const std::string writer = is_served ? "a server (" + without_credentials(rollouts.engine) + ")"
                             : train.has_own_answers() ? "the student"
                                                       : "the model";
  const std::string which =
      train.has_own_answers()
          ? fmt::format("those of {:g}% of the examples of a step", 100 * *rollouts.share)
          : fmt::format("{} to each prompt", rollouts.n);
  return fmt::format("answers: {} writes {}{}, each of up to {} (train.rollouts{})", writer, which,
                     is_served ? "" : " itself", counted(rollouts.max_new_tokens, "token"),
                     train.has_own_answers() ? ".share" : "");
}

}  // namespace sftrun::config
