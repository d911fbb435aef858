#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/strings.h"
#include "validate/checks.h"

namespace sftrun::config::relations {

void check_callbacks(Checks& checks) {
  const CallbacksConfig& callbacks = checks.run().callbacks;
  const std::vector<std::string> known = CallbacksConfig{}.events;
  for (const std::string& event : callbacks.events) {
    if (std::find(known.begin(), known.end(), event) != known.end()) continue;
    const std::string near = nearest(event, known);
    checks.error(
        fmt::format("`callbacks.events` has the unknown event `{}`", excerpt(event)),
        {"callbacks.events"},
        near.empty() ? "events: " + join(known, ", ") : fmt::format("did you mean `{}`?", near));
  }
  check_time(checks, "callbacks.timeout", callbacks.timeout, /*may_be_zero=*/false,
             "write 1m, the default");
}

}  // namespace sftrun::config::relations
