#include <array>

#include "fsdp.h"
#include "offload.h"
#include "templates.h"
#include "trackers.h"

namespace sftrun::foreign {
namespace {

constexpr auto kSharedConverters = std::to_array<Converter>({
    {"bf16", set_bf16},
    {"checkpointing", set_checkpointing},
    {"fsdp_checkpoint_format", set_fsdp_checkpoint_format},
    {"fsdp_checkpointing", set_fsdp_checkpointing},
    {"fsdp_config", set_fsdp_config},
    {"fsdp_words", set_fsdp_words},
    {"max_steps", set_max_steps},
    {"offload_activations", set_activations_on_host},
    {"offload_all", set_all_on_host},
    {"offload_optimizer", set_offload_of_optimizer},
    {"offload_weights", set_offload_of_weights},
    {"report_to", set_report_to},
    {"save_steps", set_save_steps},
    {"save_strategy", set_save_strategy},
    {"scheduler", set_scheduler},
    {"seconds", set_seconds},
    {"seeds", set_seeds},
    {"steps", set_steps},
    {"template", set_template},
    {"tracked_name", set_tracked_name},
    {"tracked_project", set_tracked_project},
    {"tracking_uri", set_tracking_uri},
    {"used_trackers", set_used_trackers},
    {"warmup_ratio", set_warmup_ratio},
    {"warmup_steps", set_warmup_steps},
});

}  // namespace

std::span<const Converter> shared_converters() {
  return kSharedConverters;
}

}  // namespace sftrun::foreign
