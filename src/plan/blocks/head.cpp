#include "blocks/block.h"

/// The final norm, the head and the cross-entropy, whose gradients are computed in the forward pass
/// (src/layers/fused/fused_head.cpp).
namespace sftrun::plan::head {
namespace {

bool distills(const StepContext& step) {
  return step.config.train.objective_info().needs_teacher;
}

/// Rows whose logits exist at the same time (`chunk_rows` in fused_head.cpp).
int64_t logit_rows(const StepContext& step) {
  constexpr int64_t kRowBlock = 64;
  const int64_t vocab = step.arch.vocab_size;
  const int64_t rows =
      step.shape.on_gpu ? std::max<int64_t>(1024, (int64_t{256} << 20) / vocab)
                        : std::max(kRowBlock, (int64_t{32} << 20) / vocab / kRowBlock * kRowBlock);
  return std::min(step.shape.tokens, distills(step) ? std::max<int64_t>(1, rows / 4) : rows);
}

/// Beside a chunk of logits, those in fp32, which are the chunk itself where that is in fp32 and has no soft
/// cap, with what reductions need; or, where that is more, k + 1 classes in fp64 with their columns
/// (distilled_rows.cpp).
int64_t distillation_bytes(const StepContext& step) {
  if (!distills(step)) return 0;
  constexpr int64_t kOfClass = 7 * 8;
  const config::TrainConfig& train = step.config.train;
  const bool has_softcap = step.arch.final_softcap > 0,
             is_in_place = step.shape.element_bytes == kFp32 && !has_softcap;
  const int64_t tensors =
      (is_in_place ? 0 : 1) + (train.kd_temperature != 1 ? 1 : 0) + (has_softcap ? 1 : 0);
  const int64_t logits = logit_rows(step) * step.arch.vocab_size * kFp32,
                classes = logit_rows(step) * kOfClass *
                          (std::min(train.teacher_topk, step.arch.vocab_size) + 1);
  return tensors * logits + std::max(logits, classes);
}

/// On a GPU products read whole matrices: a quantised head is unpacked for its own.
bool is_unpacked(const StepContext& step) {
  const config::TuningConfig& tuning = step.config.tuning;
  const bool is_quantised = tuning.quantises_base() ? tuning.quant_embeddings.value_or(false)
                                                    : tuning.quant == config::Quant::kGguf &&
                                                          tuning.quant_embeddings.value_or(true);
  return !step.trains_head && is_quantised;
}

/// Hidden states, those of labelled rows, normed, and their gradients; beside a chunk of logits the
/// gradients of its rows, or of the matrix.
int64_t bytes_on_gpu(const StepContext& step) {
  const int64_t hidden = step.arch.hidden_size, matrix = step.arch.vocab_size * hidden,
                element = step.shape.element_bytes, rows = logit_rows(step);
  const int64_t chunk = rows * step.arch.vocab_size * element +
                        std::max(rows * hidden * element, step.trains_head ? kFp32 * matrix : 0) +
                        (is_unpacked(step) ? matrix * element : 0);
  const int64_t norm = norm_backward(step) - step.rows(hidden);
  return step.rows(4 * hidden) + std::max(chunk + distillation_bytes(step), norm);
}

/// Hidden states, those of labelled rows, normed, and their gradients of the head and of the norm.
int64_t bytes_on_cpu(const StepContext& step) {
  const int64_t matrix = step.arch.vocab_size * step.arch.hidden_size,
                logits = logit_rows(step) * step.arch.vocab_size;
  // oneDNN, which has the products in fp32, copies the logits' gradient to transpose it for the
  // gradient of the head.
  const bool copies = step.trains_head && step.shape.element_bytes == kFp32;
  return step.rows(5 * step.arch.hidden_size) + logits * step.shape.element_bytes +
         std::max(distillation_bytes(step), matrix_gradient_on_cpu(step, matrix, step.trains_head) +
                                                (copies ? kFp32 * logits : 0));
}

/// Hidden states, and their gradients, of which few rows are not zero. A head of scores has few rows.
int64_t bytes_of_scores(const StepContext& step) {
  return step.rows(2 * step.arch.hidden_size) +
         kFp32 * step.arch.score->num_labels * step.arch.hidden_size;
}

/// Texts of a global batch. How many a packed sequence has is not known before the data: of half a
/// hundred tokens each. Micro-batches that are larger than the run's make its global batch larger.
int64_t texts_of_batch(const StepContext& step) {
  constexpr int64_t kUsualTokens = 50;
  const config::RunConfig& config = step.config;
  const config::TrainConfig& train = config.train;
  const int64_t sequences = train.sequences(),
                tokens = config.data.bin_tokens.value.value_or(config.model.max_seq_len),
                together = train.grad_accum.value.value_or(1) * config.parallel.axes.data_parts();
  const int64_t bins = std::max(train.global_batch_size.value.value_or(1),
                                together * (step.shape.tokens / (sequences * tokens)));
  return bins *
         (config.data.packing ? std::max(sequences, sequences * tokens / kUsualTokens) : sequences);
}

/// Embeddings of a global batch and their gradients in fp32, and what is more: hidden states with their gradients (with `mean` also
/// normed ones, and those in fp32), or the similarities of queries and other texts with what autograd keeps of them
/// (train/objectives/embed.cpp).
int64_t bytes_of_embeddings(const StepContext& step) {
  constexpr int64_t kMatrices = 4;
  // As measured on a CPU with 3000 queries: 4.6 matrices of similarities, of the symmetric loss 5.5.
  const int64_t num_scores = step.config.train.embed_symmetric ? 6 : 5;
  const int64_t hidden = step.arch.hidden_size, texts = texts_of_batch(step),
                queries = texts / step.config.train.sequences();
  const bool is_mean = step.config.train.pooling == config::Pooling::kMean;
  const int64_t rows =
      step.rows(2 * hidden) + (is_mean ? step.rows(3 * hidden) + step.fp32_rows(2 * hidden) : 0);
  const int64_t element = step.shape.on_gpu ? kFp32 : 2 * kFp32;
  const int64_t scores =
      num_scores * element * queries * (texts - queries) + kMatrices * element * texts * hidden;
  return 2 * kFp32 * texts * hidden + std::max(rows, scores);
}

TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  if (step.config.train.objective_info().embeds()) return {.in_forward = bytes_of_embeddings(step)};
  if (step.arch.score) return {.in_forward = bytes_of_scores(step)};
  return {.in_forward = step.shape.on_gpu ? bytes_on_gpu(step) : bytes_on_cpu(step)};
}

/// Logits of the last token of each sequence, in fp32.
GenerationBytes generation(const StepContext& pass, int64_t /*layer*/) {
  return {.pass_of_sequence = pass.arch.vocab_size * kFp32};
}

}  // namespace

const BlockRow kRow{.name = "head", .training = training, .generation = generation};

}  // namespace sftrun::plan::head
