#include "sftrun/train/teacher.h"

#include <memory>

#include "sftrun/core/error.h"
#include "sftrun/data/media_faults.h"
#include "sftrun/train/micro_batch_schedule.h"

namespace sftrun::train {

Teacher::Teacher(model::Decoder& decoder, parallel::Strategy& strategy,
                 const TeacherOptions& options)
    : Teacher(stage_of(decoder, strategy), options) {}

Teacher::Teacher(const model::Stage& stage, const TeacherOptions& options)
    : options_(options), stage_(stage) {
  SFTRUN_CHECK(options.k >= 1 && options.k <= options.num_tokens);
}

namespace {

/// The student has read the same files before, and told of those that it could not read: something blank
/// stands for them here, too.
model::PackedBatch prepare(const data::Batch& batch, model::Decoder& decoder, bool is_pinned) {
  data::MediaFaults faults;
  decoder.note_media_faults_in(&faults);
  const auto end_noting = [&decoder](void*) { decoder.note_media_faults_in(nullptr); };
  const std::unique_ptr<void, decltype(end_noting)> noting(&faults, end_noting);
  model::PackedBatch packed = model::prepare_batch(batch, decoder.rope(), decoder.batch_target(),
                                                   {}, {.is_pinned = is_pinned});
  for (const data::MediaError& error : faults.take())
    if (!error.is_of_file()) throw error;
  return packed;
}

}  // namespace

std::optional<layers::TeacherTargets> Teacher::targets(const data::Batch& batch,
                                                       Activity* activity) const {
  const model::PackedBatch packed = prepare(batch, stage_.decoder(), options_.is_pinned);
  model::MicroBatchRun run(packed);
  run.options.activity = activity;
  stage_.forward(run);
  auto targets = stage_.top_tokens(run, options_.k, options_.num_tokens, options_.mix.temperature);
  if (targets) targets->mix = options_.mix;
  return targets;
}

}  // namespace sftrun::train
