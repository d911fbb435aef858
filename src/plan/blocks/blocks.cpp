#include <algorithm>
#include <array>

#include "blocks/block.h"
#include "sftrun/core/error.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/step_memory.h"

namespace sftrun::plan {
namespace {

#define SFTRUN_ADDRESS_OF_ROW(name) &name::kRow,
constexpr std::array kRows = {SFTRUN_BLOCKS(SFTRUN_ADDRESS_OF_ROW) SFTRUN_ADDRESS_OF_ROW(embedding)
                                  SFTRUN_ADDRESS_OF_ROW(head)};
#undef SFTRUN_ADDRESS_OF_ROW

}  // namespace

StepContext::StepContext(const spec::ArchSpec& whole, const config::RunConfig& run,
                         const MicroBatchShape& micro_batch)
    : arch(device_arch(whole, run.parallel.axes)),
      config(run),
      shape(micro_batch),
      lora(lora_spec(run.tuning, whole)),
      trains_base(!run.tuning.trains_adapter()),
      trains_all(run.tuning.mode == config::TuningMode::kFull),
      has_dora(!trains_base && run.tuning.lora.dora),
      has_dropout(!trains_base && run.tuning.lora.dropout > 0),
      joins_linears(shape.on_gpu && !trains_base && !has_dora && !has_dropout) {}

const BlockRow& block_row(std::string_view name) {
  const auto* const found = std::find_if(kRows.begin(), kRows.end(),
                                         [&](const BlockRow* row) { return row->name == name; });
  SFTRUN_CHECK(found != kRows.end());
  return **found;
}

}  // namespace sftrun::plan
