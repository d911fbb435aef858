#include "sftrun/train/objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>

#include "dpo.h"
#include "sftrun/core/error.h"
#include "sftrun/data/example.h"

namespace sftrun::train {

namespace {

ObjectiveValue kto(const DocumentSums& /*sums*/, const config::TrainConfig& /*config*/) {
  throw ConfigError("`train.objective` kto cannot be trained in this version", "train.objective",
                    "use another objective");
}

/// `Objective::evaluate` of each row of config::kObjectives; null: it is not called.
using Evaluate = ObjectiveValue (*)(const DocumentSums& sums, const config::TrainConfig& config);
// to_array: a missing entry is an error of the compiler.
constexpr std::array<Evaluate, config::kObjectives.size()> kEvaluate =
    std::to_array<Evaluate>({nullptr, dpo, kto});

static_assert([] {
  for (size_t i = 0; i < kEvaluate.size(); ++i)
    if (config::kObjectives[i].needs_sums() != (kEvaluate[i] != nullptr)) return false;
  return true;
}());

/// Sums of the rows' values [N] fp64 over each document.
at::Tensor summed(const at::Tensor& values, const at::Tensor& documents, int64_t num_documents) {
  // Not index_add_: on CUDA the order of its additions varies.
  const at::Tensor numbers = at::arange(num_documents, documents.options()).unsqueeze(1);
  return at::where(documents.unsqueeze(0) == numbers, values.unsqueeze(0), 0.0).sum(1);
}

}  // namespace

int64_t Objective::count_terms(const BatchCounts& counts) const {
  return info().terms == config::LossTerms::kLabelTokens ? counts.label_tokens
                                                         : counts.documents / info().sequences();
}

ObjectiveValue Objective::evaluate(const DocumentSums& sums) const {
  SFTRUN_CHECK(info().needs_sums());
  return kEvaluate[static_cast<size_t>(info().objective)](sums, config_);
}

at::Tensor sums_by_document(const at::Tensor& losses, const at::Tensor& documents,
                            int64_t num_documents) {
  const at::NoGradGuard no_grad;
  return summed(losses.to(at::kDouble).neg_(), documents, num_documents);
}

at::Tensor lengths_by_document(const at::Tensor& labels, const at::Tensor& documents,
                               int64_t num_documents) {
  return summed(labels.ne(data::kIgnoreIndex).to(at::kDouble), documents, num_documents);
}

at::Tensor row_factors(const ObjectiveValue& value, const at::Tensor& documents) {
  return value.weights.index_select(0, documents).to(at::kFloat);
}

}  // namespace sftrun::train
