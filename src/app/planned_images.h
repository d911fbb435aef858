#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

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

/// Plans the tower and the images of a run by the first records of its data sets, tokenised as the run will: the largest micro-batch of them. If
/// these cannot be used, each packed sequence is taken to be full of images.
/// @param model folder of the model   @param devices gets `tower` and `images`
/// @return what the data have and where, for the user: "images: up to 640x480 pixels, …"; empty: no images
std::string plan_images_of_data(const config::RunConfig& config, const std::filesystem::path& model,
                                const spec::ArchSpec& arch, plan::RunDevices& devices);

/// The plan of `plan_images_of_data`, from the launcher to its workers: "12,8000.5,1024".
std::string to_text(const plan::ImagesOfBin& images);
/// @throws ConfigError for a text of another form
void plan_images_of_launcher(const std::string& text, const config::RunConfig& config,
                             const spec::ArchSpec& arch, plan::RunDevices& devices);

}  // namespace sftrun::app
