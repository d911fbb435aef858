#pragma once

#include <cstdint>

#include "sftrun/config/run_config.h"

/// What `train.teacher` names, and how a model beside the run's own is held.
namespace sftrun::config {

enum class TeacherKind : uint8_t {
  kNone,    ///< the objective reads none, or none is named
  kScores,  ///< a folder of scores, which has a teacher.json
  kModel,   ///< anything else: a model, or an adapter of one
};
/// Looks at the files.
TeacherKind teacher_kind(const TrainConfig& train);

/// How a frozen model is divided that is used beside the run's own, or before it: its matrices, units and
/// weights over the same devices. What the run divides of trained values alone, each rank has whole.
/// @param parallel with resolved axes
ParallelConfig parallel_of_frozen(const ParallelConfig& parallel);

/// The format in which a teacher beside the student is held, without anything that trains.
TuningConfig form_of_teacher(const TrainConfig& train);

}  // namespace sftrun::config
