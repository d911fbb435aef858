#include "sftrun/train/objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dpo.h"
#include "sft.h"
#include "sftrun/core/error.h"

namespace sftrun::train {

std::unique_ptr<Objective> make_objective(const config::TrainConfig& config) {
  switch (config.objective) {
    case config::Objective::kSft:
      return std::make_unique<SftObjective>();
    case config::Objective::kDpo:
      return std::make_unique<DpoObjective>(config.beta);
  }
  invariant_failed(__FILE__, __LINE__, "an objective");
}

at::Tensor sums_by_document(const at::Tensor& losses, const at::Tensor& documents,
                            int64_t num_documents) {
  const at::NoGradGuard no_grad;
  // Not index_add_: on CUDA the order of its additions varies.
  const at::Tensor numbers = at::arange(num_documents, documents.options()).unsqueeze(1);
  const at::Tensor log_p = losses.to(at::kDouble).neg_();
  return at::where(documents.unsqueeze(0) == numbers, log_p.unsqueeze(0), 0.0).sum(1);
}

at::Tensor row_factors(const ObjectiveValue& value, const at::Tensor& documents) {
  return value.weights.index_select(0, documents).to(at::kFloat);
}

}  // namespace sftrun::train
