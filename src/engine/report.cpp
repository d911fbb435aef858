#include "report.h"

#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/presence.h"

namespace sftrun::engine {
namespace fs = std::filesystem;

std::string backend_name(config::TuningBackend backend) {
  return backend == config::TuningBackend::kFused ? "fused" : "bnb";
}

std::string status_of_exit_code(int exit_code) {
  constexpr int kInterrupted = 130;
  if (exit_code == 0) return "done";
  return exit_code == kInterrupted ? "interrupted" : "stopped";
}

observe::RunReport report_of_run(const ReportedRun& run) {
  observe::RunReport report;
  report.version = SFTRUN_VERSION;
  report.backend = backend_name(run.config.tuning.backend);
  report.comm_backend = run.world_size > 1 ? run.comm_backend : "";
  report.strategy = run.strategy;
  for (const config::AxisRow& row : config::axis_rows())
    report.axes[row.name] = run.config.parallel.axes.*row.ranks;
  report.dtype = dtype_name(run.compute.dtype);
  report.base_model = run.config.model.name;
  report.base_model_path = absolute_path(run.base_path).lexically_normal().string();
  report.base_model_fingerprint = run.base_fingerprint;
  if (run.base_record != nullptr) {
    report.base = run.base_record->to_json();
    report.base.erase("norms");  // for the adapter, which may be used elsewhere
    report.base.erase("layout");
  }
  report.dataset_fingerprint = run.dataset_fingerprint;
  report.config_fingerprint = Fingerprint().add(run.identity.at("config").dump()).hex();
  report.world_size = run.world_size;
  report.device_names.assign(static_cast<size_t>(run.world_size), device_name(run.compute.device));
  return report;
}

std::optional<observe::RunReport> earlier_report(const fs::path& run_dir,
                                                 const std::optional<fs::path>& resume_from) {
  const auto normal = [](const fs::path& path) { return absolute_path(path).lexically_normal(); };
  const bool goes_on_here =
      resume_from && normal(resume_from->parent_path()) == normal(run_dir / "checkpoints");
  try {
    if (goes_on_here) return observe::read_run_report(run_dir / "run.json");
  } catch (const DataError&) {
  }
  return std::nullopt;
}

nlohmann::ordered_json evaluation_until(const observe::RunReport& report, int64_t step) {
  const nlohmann::ordered_json& last = report.evaluation;
  return last.is_object() && last.value("step", step + 1) <= step ? last : nullptr;
}

observe::RankBytes rank_bytes(uint64_t base_bytes, const parallel::StoredBytes& stored,
                              uint64_t optimizer_bytes, uint64_t peak_bytes,
                              uint64_t static_bytes) {
  const auto minus = [](uint64_t a, uint64_t b) { return a > b ? a - b : 0; };
  return {.base = stored.frozen.value_or(base_bytes),
          .trainable = stored.trainable,
          .gradients = stored.gradients,
          .optimizer = optimizer_bytes,
          .activations_peak = minus(minus(peak_bytes, static_bytes), optimizer_bytes)};
}

}  // namespace sftrun::engine
