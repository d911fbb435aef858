#include "sftrun/observe/foreign_results.h"

#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"

namespace sftrun::observe {
namespace fs = std::filesystem;

void require_no_model(const fs::path& run_dir) {
  for (const char* name : {"config.json", "adapter_config.json"}) {
    if (!has_entry(run_dir / name)) continue;
    throw ConfigError("output.dir is the directory of a model or an adapter itself",
                      (run_dir / name).string(), "choose another output.dir");
  }
}

void require_no_results(const fs::path& run_dir) {
  require_no_model(run_dir);
  for (const char* name : {"adapter", "model"}) {
    if (!has_entry(run_dir / name)) continue;
    throw ConfigError(fmt::format("the run directory has {} but no checkpoint of this run", name),
                      (run_dir / name).string(),
                      "choose another output.dir, or move this aside with --overwrite");
  }
}

}  // namespace sftrun::observe
