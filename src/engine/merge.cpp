#include "sftrun/export/merge.h"

#include <cstdio>

#include "commands.h"
#include "merge_difference.h"
#include "session.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {
namespace {

exporting::MergeOptions merge_options(const app::MergeRequest& request) {
  exporting::MergeOptions options;
  options.base = request.model;
  options.output = request.output;
  options.adapter = request.adapter;
  options.checkpoint = request.checkpoint;
  options.dtype = request.dtype;
  options.format = request.format;
  options.as_stored = request.as_stored;
  options.overwrite = request.overwrite;
  options.max_shard_bytes = static_cast<uint64_t>(request.max_shard_size);
  options.block_size = request.quant.block_size;
  options.no_double_quant = request.quant.no_double_quant;
  options.skip_modules = request.quant.skip_modules;
  return options;
}

/// null: nothing was measured, or there is no adapter
nlohmann::ordered_json measured_difference(const exporting::MergeOptions& options,
                                           const exporting::MergedModel& merged,
                                           const app::MergeRequest& request) {
  if (!options.adapter) return nullptr;
  return report_difference(
      {.base = merged.base,
       .base_path = options.base,
       .adapter = *options.adapter,
       .report_directory = options.writes_file() ? std::nullopt : std::optional(options.output),
       .written = merged.written.path,
       .stored = merged.written.stored,
       .is_below_8_bits = merged.written.is_below_8_bits,
       .as_stored = options.as_stored},
      request);
}

}  // namespace

int run_merge(const app::MergeRequest& request) {
  set_threads();
  choose_compute("cpu", "fp32", 0);
  const exporting::MergeOptions options = merge_options(request);
  const exporting::MergedModel merged = exporting::merge(options);
  const auto measured = measured_difference(options, merged, request);
  if (request.json) {
    auto description = weights::describe_written(merged.written.path, options.format,
                                                 merged.written.dtype, measured);
    if (merged.written.images) description["mmproj"] = merged.written.images->string();
    std::printf("%s\n", description.dump().c_str());
  }
  return 0;
}

}  // namespace sftrun::engine
