#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "sftrun/core/error.h"
#include "sftrun/train/embeddings.h"

/// InfoNCE with in-batch negatives (arXiv:1807.03748), as sentence-transformers'
/// MultipleNegativesRankingLoss computes it: A examples of `sequences` texts each, which are a query, a
/// text that fits it, and those that do not.
namespace sftrun::train {
namespace {

/// torch.nn.functional.normalize
at::Tensor normalized(const at::Tensor& rows) {
  constexpr double kSmallest = 1e-12;
  return rows /
         at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, /*keepdim=*/true).clamp_min(kSmallest);
}

/// The texts of one role in each example: [A, ...].
at::Tensor of_role(const at::Tensor& texts, int64_t role, int64_t sequences) {
  return texts.slice(0, role, {}, sequences);
}

/// All texts but the queries: [A * (sequences - 1), ...], first those that fit.
at::Tensor candidates_of(const at::Tensor& texts, int64_t sequences) {
  std::vector<at::Tensor> roles;
  for (int64_t role = 1; role < sequences; ++role) roles.push_back(of_role(texts, role, sequences));
  return at::cat(roles);
}

/// Pairs of a query and another example's text that may fit it, too, [A, candidates] bool: the text is equal to the query's own, or
/// is that of an equal query.
at::Tensor may_fit(const at::Tensor& texts, int64_t sequences) {
  const at::Tensor queries = of_role(texts, 0, sequences), own = of_role(texts, 1, sequences),
                   candidates = candidates_of(texts, sequences);
  at::Tensor fits = own.unsqueeze(1) == candidates.unsqueeze(0);
  const int64_t count = queries.size(0);
  fits.narrow(1, 0, count).logical_or_(queries.unsqueeze(1) == queries.unsqueeze(0));
  fits.narrow(1, 0, count).fill_diagonal_(false);
  return fits;
}

/// -log of the softmax at the diagonal [A].   @param scores [A, at least A]
at::Tensor losses_at_diagonal(const at::Tensor& scores) {
  return at::logsumexp(scores, 1) - scores.diagonal();
}

/// Of each query whether its own text is the nearest, and 1 / its rank: [2, A] fp64.
at::Tensor ranks(const at::Tensor& scores) {
  const at::Tensor nearer = (scores > scores.diagonal().unsqueeze(1)).sum(1).to(at::kDouble);
  return at::stack({(nearer == 0).to(at::kDouble), 1 / (nearer + 1)});
}

}  // namespace

EmbeddedBatch contrast(const at::Tensor& embeddings, const at::Tensor& texts,
                       const config::TrainConfig& config, bool with_gradients) {
  const int64_t sequences = config.sequences();
  SFTRUN_CHECK_EQ(embeddings.size(0) % sequences, 0);
  const at::AutoGradMode grad_mode(with_gradients);
  const bool is_on_cpu = embeddings.device().is_cpu();
  const at::Tensor leaf =
      embeddings.detach().to(is_on_cpu ? at::kDouble : at::kFloat).requires_grad_(with_gradients);
  const at::Tensor rows = config.embed_normalize ? normalized(leaf) : leaf;
  const at::Tensor queries = of_role(rows, 0, sequences);
  const at::Tensor fits = may_fit(texts.to(embeddings.device()), sequences);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const at::Tensor scores =
      (at::mm(queries, candidates_of(rows, sequences).t()) / config.embed_temperature)
          .masked_fill(fits, kNone);
  at::Tensor losses = losses_at_diagonal(scores);
  if (config.embed_symmetric)
    losses = (losses + losses_at_diagonal(scores.narrow(1, 0, queries.size(0)).t())) / 2;
  EmbeddedBatch batch{.losses = losses.detach().to(at::kDouble),
                      .metric_names = {"accuracy", "mrr"},
                      .metrics = ranks(scores.detach())};
  if (with_gradients)
    batch.gradients = torch::autograd::grad({losses.sum()}, {leaf})[0].to(at::kFloat);
  return batch;
}

}  // namespace sftrun::train
