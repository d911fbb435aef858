#include "sftrun/model/base_form.h"

#include <algorithm>

#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/quant_notes.h"
#include "sftrun/weights/fingerprint.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::model {

BaseForm base_form(const config::TuningConfig& tuning, const weights::Checkpoint* checkpoint) {
  BaseForm form{.embeddings = tuning.quant_embeddings, .skip_modules = tuning.skip_modules};
  if (tuning.keeps_blocks() && checkpoint != nullptr)
    plan::require_blocks(tuning.quant, weights::block_kinds(*checkpoint));
  const bool holds_packed = checkpoint != nullptr && !weights::packed_format(*checkpoint).empty(),
             keeps = plan::keeps_stored(tuning, holds_packed);
  // What the files have in the very format that is asked for stays, too.
  form.keep_stored = keeps || tuning.quantises_base();
  if (!keeps) form.quant = tuning.quant_options();
  return form;
}

std::string stored_base_form(const config::TuningConfig& tuning,
                             const weights::Checkpoint& checkpoint) {
  const std::string packed = weights::packed_format(checkpoint);
  if (plan::keeps_stored(tuning, !packed.empty())) return packed;
  return tuning.quant_name();
}

namespace {

/// What the run did not load, it did not quantise.
void skip_image_side(const spec::VisionSpec& vision, std::vector<std::string>& skipped) {
  const auto skip = [&](std::string module) {
    if (module.ends_with('.')) module.pop_back();
    const bool is_skipped = std::ranges::any_of(
        skipped, [&](const std::string& known) { return has_path_part(module, known); });
    if (!is_skipped) skipped.push_back(std::move(module));
  };
  skip(vision.prefix);
  for (const std::string& module : vision.projector) skip(module);
}

}  // namespace

config::BaseRecord base_record(const config::RunConfig& config, const std::string& dtype,
                               const weights::Checkpoint& checkpoint,
                               const std::string& fingerprint, bool has_tower) {
  config::BaseRecord held{.model = config.model.name,
                          .fingerprint = fingerprint,
                          .form = stored_base_form(config.tuning, checkpoint),
                          .dtype = dtype,
                          .tuning = config.tuning,
                          .norms = weights::norm_squares(checkpoint),
                          .layout = weights::dense_layout(checkpoint)};
  // What `auto` means depends on the mode and the files.
  held.tuning.quant = plan::resolved_quant(config.tuning, weights::block_kinds(checkpoint));
  held.tuning.mode = config::TuningMode::kLora;
  if (checkpoint.arch().vision && !has_tower && held.tuning.quantises_base())
    skip_image_side(*checkpoint.arch().vision, held.tuning.skip_modules);
  return held;
}

void warn_of_another_base(const std::filesystem::path& adapter, const weights::Checkpoint& base) {
  const auto held = config::read_base_record(adapter);
  if (!held || held->norms.empty()) return;
  const bool
      has_other_values =  // unless it is the very same; as where an adapter was merged into it
      !held->layout.empty() && held->layout == weights::dense_layout(base);
  const bool has_its_norms =
      weights::are_norms_of_one_model(held->norms, weights::norm_squares(base));
  if (has_its_norms && !has_other_values) return;
  if (weights::has_fingerprint(base, held->fingerprint, weights::remembered_hashes())) return;
  log::warn("{} was trained on another base model ({}); with this base the results will be wrong",
            adapter.string(), held->model);
}

std::optional<config::BaseRecord> quantised_by_run(const std::filesystem::path& adapter,
                                                   const weights::Checkpoint& base) {
  std::optional<config::BaseRecord> held = config::read_base_record(adapter);
  if (!held || !held->tuning.quantises_base() ||
      !weights::has_fingerprint(base, held->fingerprint, weights::remembered_hashes()))
    return std::nullopt;
  if (!held->pissa()) return held;
  log::info(
      "using the base as stored: the run quantised the PiSSA residual to {}, which was not saved",
      held->form);
  return std::nullopt;
}

}  // namespace sftrun::model
