#pragma once

#include <cstdint>
#include <optional>

#include "sftrun/core/activity.h"
#include "sftrun/data/example.h"
#include "sftrun/layers/distillation.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/strategy.h"

namespace sftrun::train {

struct TeacherOptions {
  int64_t k = 1;           ///< tokens whose log-probabilities it gives; at most num_tokens
  int64_t num_tokens = 1;  ///< of the tokenizer, whatever rows its head has
  layers::Distillation mix;
  bool is_pinned = true;
};

/// A frozen model beside the student, divided over the same ranks. It answers for any micro-batch: one of
/// the data, or one whose tokens were sampled a moment before. Nothing is looked up by examples, and
/// nothing is kept between calls. Immutable; not thread-safe.
class Teacher {
 public:
  /// @param decoder with its frozen weights   @param strategy that divides it; both must outlive this
  Teacher(model::Decoder& decoder, parallel::Strategy& strategy, const TeacherOptions& options);
  /// @param stage of a frozen model, whose decoder and links must outlive this
  Teacher(const model::Stage& stage, const TeacherOptions& options);

  /// What it says of the labelled rows of a micro-batch, in their order: [N, k] and [N, k + 1]. Its
  /// forward pass: every rank calls this for the same micro-batches, in the same order as passes of the
  /// student, also for an empty one. Without gradients; the host does not wait for the device.
  /// @param activity records the pass; may be null
  /// @return nullopt: another stage of the pipeline has the head, or the micro-batch is empty
  /// @throws data::MediaError
  std::optional<layers::TeacherTargets> targets(const data::Batch& batch,
                                                Activity* activity = nullptr) const;

  const TeacherOptions& options() const { return options_; }

 private:
  TeacherOptions options_;
  model::Stage stage_;
};

}  // namespace sftrun::train
