#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "commands.h"
#include "sftrun/app/requests/parts.h"
#include "sftrun/config/run_config.h"
#include "sftrun/plan/memory_plan.h"
#include "sftrun/plan/tower.h"
#include "sftrun/spec/arch_spec.h"

/// The images that a memory plan is for.
namespace sftrun::app {

/// Null: none.   @throws ConfigError for a size of another form
std::optional<PlannedImages> planned_images(const ImageFlags& flags);

/// What the model's image processor makes of them.
/// @param model folder with the processor's files
/// @throws ConfigError if the model reads text alone, or the images' tokens do not fit in a sequence
plan::ImagesOfBin images_of_bin(const PlannedImages& images, const std::filesystem::path& model,
                                const spec::ArchSpec& arch, const config::RunConfig& config);

/// What a run's first records tell of its images, before they are tokenised: where there are some, the tower is planned, and for each
/// packed sequence as many patches as it has if all its tokens are of images. Data that cannot be read tell nothing.
/// @param model folder of the model
void plan_images_of_data(const config::RunConfig& config, const std::filesystem::path& model,
                         const spec::ArchSpec& arch, plan::RunDevices& devices);

}  // namespace sftrun::app
