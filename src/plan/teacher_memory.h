#pragma once

#include "sftrun/plan/blocks.h"
#include "sftrun/plan/micro_batch.h"

/// A teacher beside the student: its weights, and its forward pass of a micro-batch.
namespace sftrun::plan {

/// Adds what a device holds of the teacher.   @param student the run
void add_teacher(const TeacherUse& teacher, const config::RunConfig& student, int64_t element_bytes,
                 const DeviceShare& device, StaticMemory& memory);

/// Bytes of the teacher in a step, beside its weights.
struct TeacherBytes {
  int64_t in_pass = 0;  ///< its copy of the batch, and what it says, included
  int64_t sent =
      0;  ///< of a pipeline: hidden states that are under way, also while the student runs
};
/// @param shape of the student's micro-batch   @pre shape.teacher
TeacherBytes teacher_bytes(const config::RunConfig& student, const MicroBatchShape& shape);

}  // namespace sftrun::plan
