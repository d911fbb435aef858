#include "sftrun/export/merge.h"

#include <cstdio>

#include "commands.h"
#include "merge_difference.h"
#include "session.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {
namespace {

exporting::MergeOptions merge_options(const nlohmann::ordered_json& request) {
  exporting::MergeOptions options;
  options.base = request.at("model").get<std::string>();
  options.output = request.at("output").get<std::string>();
  options.adapter = get<std::string>(request, "adapter");
  options.checkpoint = get<std::string>(request, "checkpoint");
  options.dtype = request.at("dtype").get<std::string>();
  options.format = request.at("format").get<std::string>();
  options.as_stored = request.at("as_stored").get<bool>();
  options.overwrite = request.at("overwrite").get<bool>();
  options.max_shard_bytes = static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>());
  options.block_size = get<int64_t>(request, "block_size");
  options.no_double_quant = request.at("no_double_quant").get<bool>();
  options.skip_modules = request.at("skip_modules").get<std::vector<std::string>>();
  return options;
}

/// null: nothing was measured, or there is no adapter
nlohmann::ordered_json measured_difference(const exporting::MergeOptions& options,
                                           const exporting::MergedModel& merged,
                                           const nlohmann::ordered_json& request) {
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

int run_merge(const nlohmann::ordered_json& request) {
  set_threads(request);
  choose_compute("cpu", "fp32", 0);
  const exporting::MergeOptions options = merge_options(request);
  const exporting::MergedModel merged = exporting::merge(options);
  const auto measured = measured_difference(options, merged, request);
  if (request.at("json").get<bool>()) {
    const auto description = weights::describe_written(merged.written.path, options.format,
                                                       merged.written.dtype, measured);
    std::printf("%s\n", description.dump().c_str());
  }
  return 0;
}

}  // namespace sftrun::engine
