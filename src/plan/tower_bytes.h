#pragma once

#include "sftrun/plan/blocks.h"

/// The tower in a training step: a walk over its units.
namespace sftrun::plan {

struct TowerBytes {
  int64_t images = 0;   ///< StepMemory::images
  int64_t kept = 0;     ///< for the backward pass
  int64_t of_unit = 0;  ///< StepMemory::tower
};
/// Nothing without a tower or without images.
/// @param kept_by_text what units of the text model keep, which is not there while the tower runs
/// @param frees a unit frees what it kept at the end of its backward pass
TowerBytes tower_bytes(const StepContext& step, int64_t kept_by_text, bool frees);

}  // namespace sftrun::plan
