#include "sftrun/train/run_directory.h"

#include <algorithm>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/train/checkpoint.h"

namespace sftrun::train {
namespace fs = std::filesystem;
namespace {

/// Of a run, in the order in which they are moved.
std::vector<fs::path> parts_of(const fs::path& run_dir) {
  std::vector<fs::path> parts;
  for (const char* name :
       {"checkpoints", "adapter", "model", "metrics.jsonl", "tensorboard", "profile",
        "config.resolved.yaml", "run.json", "trackers.json", "report.html"}) {
    if (has_entry(run_dir / name)) parts.push_back(run_dir / name);
  }
  for (const fs::path& entry : entries_of(run_dir)) {
    const std::string name = entry.filename().string();
    if (name.starts_with("adapter.old-") || name.starts_with("model.old-")) parts.push_back(entry);
  }
  return parts;
}

fs::path free_name(const fs::path& run_dir) {
  for (int number = 1;; ++number) {
    fs::path name = run_dir / fmt::format("old-{}", number);
    if (!has_entry(name)) return name;
  }
}

bool is_empty_directory(const fs::path& path) {
  std::error_code code;
  return fs::is_directory(path, code) && fs::is_empty(path, code);
}

}  // namespace

fs::path set_run_aside(const fs::path& run_dir) {
  const std::vector<fs::path> parts = parts_of(run_dir);
  if (std::all_of(parts.begin(), parts.end(), is_empty_directory)) return {};
  fs::path aside = free_name(run_dir);
  try {
    fs::create_directory(aside);
    for (const fs::path& part : parts) fs::rename(part, aside / part.filename());
    if (leads_to_file(run_dir / "logs"))
      fs::copy(run_dir / "logs", aside / "logs", fs::copy_options::recursive);
  } catch (const fs::filesystem_error& error) {
    throw DeviceError("cannot move the earlier run aside: " + error.code().message(),
                      error.path1().string(),
                      "nothing was removed; see what is in " + aside.string());
  }
  sync_directory(run_dir);
  return aside;
}

std::vector<std::string> missing_parts(const fs::path& run_dir, bool has_tensorboard,
                                       int64_t last_step) {
  std::vector<std::string> names = {"config.resolved.yaml", "metrics.jsonl"};
  if (has_tensorboard) names.emplace_back("tensorboard");
  names.push_back(CheckpointStore(run_dir / "checkpoints")
                      .path_of(last_step)
                      .lexically_relative(run_dir)
                      .string());
  std::erase_if(names, [&](const std::string& name) {
    const fs::path path = run_dir / name;
    return name == "tensorboard" ? !is_empty_directory(path) && leads_to_file(path)
                                 : leads_to_file(path);
  });
  return names;
}

void require_parts(const fs::path& run_dir, bool has_tensorboard, int64_t last_step,
                   int exit_code) {
  const std::vector<std::string> missing = missing_parts(run_dir, has_tensorboard, last_step);
  if (missing.empty()) return;
  const std::string what = "removed from the run directory during the run: " + join(missing, ", ");
  if (exit_code != 0) return log::warn("{}", what);
  throw DataError(what, run_dir.string(),
                  "the result is complete; only the removed files are lost");
}

}  // namespace sftrun::train
