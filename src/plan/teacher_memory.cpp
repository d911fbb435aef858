#include "teacher_memory.h"

#include <algorithm>

#include "adapter_bytes.h"
#include "blocks/block.h"
#include "sftrun/config/teacher.h"
#include "sftrun/plan/step_memory.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::plan {
namespace {

/// A run of the teacher alone, in which nothing trains.
config::RunConfig run_of(const TeacherUse& teacher, const config::RunConfig& student) {
  config::RunConfig run;
  run.tuning = teacher.form;
  run.parallel = config::parallel_of_frozen(student.parallel);
  return run;
}

/// It has a tower where the student has one.
TowerUse tower_of(const TeacherUse& teacher, const TowerUse& student) {
  return {.is_loaded = student.is_loaded && teacher.arch.vision.has_value(),
          .parts = TrainedParts::text()};
}

/// Rows whose logits exist at the same time (`layers::top_tokens`).
int64_t rows_of_chunk(const StepContext& pass) {
  constexpr int64_t kRowBlock = 64, kDivisor = 4;
  const int64_t own = pass.arch.vocab_size;
  const int64_t rows = pass.shape.on_gpu
                           ? std::max<int64_t>(1024, (int64_t{256} << 20) / own)
                           : std::max(kRowBlock, (int64_t{32} << 20) / own / kRowBlock * kRowBlock);
  return std::min(pass.shape.tokens, std::max<int64_t>(1, rows / kDivisor));
}

/// Tokens that the teacher names at each label.
int64_t named_tokens(const config::RunConfig& student, int64_t vocab) {
  return std::min(student.train.teacher_topk, vocab);
}

/// Hidden states and those of the labels; a chunk's logits, of all ranks of a tensor group, in fp32, without
/// the k tokens, and what a reduction makes of them, with values and numbers of the k tokens. In the end the
/// results of chunks, numbers and log-probabilities, are copied to one tensor.
int64_t head_bytes(const StepContext& pass, const config::RunConfig& student, int64_t vocab) {
  constexpr int64_t kOfNamed = 12;
  const int64_t rows = rows_of_chunk(pass), element = pass.shape.element_bytes,
                k = named_tokens(student, vocab);
  const bool is_in_fp32 = element == kFp32 && student.train.kd_temperature == 1;
  const int64_t of_vocab = 2 * kFp32 + (is_in_fp32 ? 0 : kFp32) + element,
                chunk = rows * (of_vocab * vocab + kOfNamed * k + element * pass.arch.hidden_size),
                targets = pass.shape.tokens * (2 * k + 1) * kFp32;
  return pass.rows(2 * pass.arch.hidden_size) + std::max(targets + chunk, 2 * targets);
}

/// A layer that keeps nothing: its input, middle and output, and its blocks, of which the mixer has freed
/// its memory when the feed-forward block runs.
int64_t layer_pass_bytes(const StepContext& pass, int64_t layer) {
  int64_t mixer = 0, feed_forward = 0;
  for (const spec::BlockTensors& block : spec::layer_blocks(pass.arch, layer))
    (block.is_mixer ? mixer : feed_forward) += block_row(block.block).generation(pass, layer).pass;
  return pass.rows(3 * pass.arch.hidden_size) + std::max(mixer, feed_forward);
}

/// On a GPU products read whole matrices: quantised ones are unpacked, into two buffers.
int64_t unpacked_bytes(const StepContext& pass, bool has_stored) {
  const config::TuningConfig& form = pass.config.tuning;
  if (!pass.shape.on_gpu || !(form.quantises_base() || form.keeps_blocks() || has_stored)) return 0;
  int64_t largest = 0;
  for (int64_t layer = 0; layer < pass.arch.num_layers; ++layer)
    largest = std::max(largest, largest_product(pass.arch, layer));
  return 2 * pass.shape.element_bytes * largest;
}

int64_t largest_tower_pass(const StepContext& pass) {
  if (!pass.shape.tower.is_loaded || pass.shape.images.patches == 0) return 0;
  int64_t largest = block_row("tower_patches").generation(pass, 0).pass;
  const int64_t layers = num_tower_units(pass.arch, pass.shape.tower) - 2;
  for (int64_t layer = 0; layer < layers; ++layer)
    largest = std::max(largest, block_row("tower_layer").generation(pass, layer).pass);
  return std::max(largest, block_row("tower_mergers").generation(pass, 0).pass);
}

DeviceShare share_of(const TeacherUse& teacher, bool on_gpu, const TowerUse& student) {
  return {.on_gpu = on_gpu, .tower = tower_of(teacher, student)};
}

/// What a stage sends stays until the next one has received it.
int64_t sent_bytes(const StepContext& pass) {
  constexpr int64_t kUnderWay = 2;
  const config::Axes& axes = pass.config.parallel.axes;
  return axes.pp > 1 && !axes.stages_in_process ? kUnderWay * pass.rows(pass.arch.hidden_size) : 0;
}

}  // namespace

void add_teacher(const TeacherUse& teacher, const config::RunConfig& student, int64_t element_bytes,
                 const DeviceShare& device, StaticMemory& memory) {
  const config::RunConfig run = run_of(teacher, student);
  const DeviceShare share = share_of(teacher, device.on_gpu, device.tower);
  const StaticMemory own = static_memory(teacher.arch, run, element_bytes, teacher.stored, share);
  const int64_t copy = element_bytes == kFp32 ? 0 : element_bytes;
  memory.teacher = own.base + own.trainable + teacher.adapter_values * (kFp32 + copy);
}

TeacherBytes teacher_bytes(const config::RunConfig& student, const MicroBatchShape& shape) {
  const TeacherUse& teacher = *shape.teacher;
  const config::RunConfig run = run_of(teacher, student);
  MicroBatchShape of_teacher = shape;
  of_teacher.teacher = nullptr;
  of_teacher.tower = tower_of(teacher, shape.tower);
  const StepContext pass(teacher.arch, run, of_teacher);
  int64_t largest = largest_tower_pass(pass);
  for (int64_t layer = 0; layer < pass.arch.num_layers; ++layer)
    largest = std::max(largest, layer_pass_bytes(pass, layer));
  constexpr int64_t kOfToken = 64;
  const int64_t angles = std::ssize(pass.arch.ropes) * pass.arch.head_dim * kFp32,
                batch = shape.tokens * (kOfToken + angles) +
                        (shape.on_gpu ? student.model.max_seq_len * angles : 0);
  const StaticMemory own = static_memory(teacher.arch, run, shape.element_bytes, teacher.stored,
                                         share_of(teacher, shape.on_gpu, shape.tower));
  // Of its units none is gathered ahead for the next micro-batch (parallel::ShardedValues).
  return {.in_pass = batch + unpacked_bytes(pass, !teacher.stored.empty()) + own.gathered +
                     std::max(largest, head_bytes(pass, student, teacher.arch.vocab_size)),
          .sent = sent_bytes(pass)};
}

}  // namespace sftrun::plan
