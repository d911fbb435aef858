#include <algorithm>
#include <array>

#include "blocks/block.h"
#include "sftrun/core/error.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/step_memory.h"
#include "trained_in_full.h"

namespace sftrun::plan {
namespace {

#define SFTRUN_ADDRESS_OF_ROW(name) &name::kRow,
constexpr std::array kRows = {SFTRUN_BLOCKS(SFTRUN_ADDRESS_OF_ROW)
                                  SFTRUN_OTHER_ROWS(SFTRUN_ADDRESS_OF_ROW)};
#undef SFTRUN_ADDRESS_OF_ROW

/// Whether the text model has adapters.
bool has_adapters(const config::RunConfig& run, const TowerUse& tower) {
  return run.tuning.trains_adapter() && tower.parts.language;
}

spec::LoraSpec text_lora(const config::RunConfig& run, const spec::ArchSpec& arch,
                         const TowerUse& tower) {
  spec::LoraSpec lora = lora_spec(run.tuning, arch);
  if (tower.parts.language) return lora;
  lora.target_modules = lora.target_parameters = {};
  lora.target_pattern.reset();
  return lora;
}

}  // namespace

StepContext::StepContext(const spec::ArchSpec& whole, const config::RunConfig& run,
                         const MicroBatchShape& micro_batch)
    : arch(device_arch(whole, run.parallel.axes)),
      config(run),
      shape(micro_batch),
      lora(text_lora(run, whole, micro_batch.tower)),
      trains_base(!run.tuning.trains_adapter() && micro_batch.tower.parts.language),
      trains_all(trains_base && run.tuning.mode == config::TuningMode::kFull),
      has_dora(has_adapters(run, micro_batch.tower) && run.tuning.lora.dora),
      has_dropout(has_adapters(run, micro_batch.tower) && run.tuning.lora.dropout > 0),
      joins_linears(shape.on_gpu && !trains_base && !has_dora && !has_dropout),
      tower_training(whole, run.tuning, micro_batch.tower) {
  shape.tokens = (shape.tokens + run.parallel.axes.cp - 1) / run.parallel.axes.cp;
  trains_embedding = plan::trains_embedding(whole, run.tuning, micro_batch.tower);
  trains_head = plan::trains_head(whole, run.tuning, micro_batch.tower);
}

const BlockRow& block_row(std::string_view name) {
  const auto* const found = std::find_if(kRows.begin(), kRows.end(),
                                         [&](const BlockRow* row) { return row->name == name; });
  SFTRUN_CHECK(found != kRows.end());
  return **found;
}

}  // namespace sftrun::plan
