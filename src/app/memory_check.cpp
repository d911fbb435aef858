#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "live_memory.h"
#include "memory_report.h"
#include "sftrun/core/error.h"

namespace sftrun::app {
namespace {

template <class Report>
void print_report(const Report& report, bool json) {
  fmt::print("{}", json ? as_json(report).dump(2) + "\n" : as_text(report));
}

}  // namespace

int run_memory_check(const MemoryCheckOptions& options) {
  options.run.config.empty()
      ? print_report(live_memory(), options.json)
      : print_report(memory_report(options.run, planned_images(options.images)), options.json);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
