#include "sftrun/config/teacher.h"

#include <filesystem>
#include <utility>

#include "sftrun/core/presence.h"

namespace sftrun::config {

TeacherKind teacher_kind(const TrainConfig& train) {
  if (!train.objective_info().needs_teacher || train.teacher.empty()) return TeacherKind::kNone;
  const std::filesystem::path folder = train.teacher;
  return leads_to_file(folder / "teacher.json") ? TeacherKind::kScores : TeacherKind::kModel;
}

ParallelConfig parallel_of_frozen(const ParallelConfig& of_run) {
  ParallelConfig parallel = of_run;
  Axes& axes = parallel.axes;
  parallel.offload.params = Offload::kNone;
  if (parallel.offload.base == Offload::kCpu) axes.level = ShardLevel::kWeights;
  if (axes.shards_weights()) return parallel;
  axes.level = ShardLevel::kNone;
  axes.dp_replicate *= std::exchange(axes.dp_shard, 1);
  return parallel;
}

TuningConfig form_of_teacher(const TrainConfig& train) {
  TuningConfig form;
  form.quant = train.teacher_quant;
  form.lora.r = 0;
  return form;
}

}  // namespace sftrun::config
