#include "embed_records.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "command_ranks.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/input_records.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/record_error.h"
#include "sftrun/data/retrieval.h"
#include "sftrun/model/stage.h"
#include "shared_passes.h"

namespace sftrun::engine {
namespace {

/// @param all [texts, hidden] fp64: receives the rows of these
void embed(const data::ExampleStore& texts, const Neighbours& piece, bool is_mean,
           const model::Stage& stage, at::Tensor& all) {
  std::vector<data::Bin> bins;
  for (size_t text = piece.first; text < piece.end; ++text)
    bins.push_back({static_cast<int64_t>(text)});
  model::Decoder& decoder = stage.decoder();
  const model::PackedBatch packed = model::prepare_batch(
      data::make_batch(texts, bins, 0, std::ssize(bins)), decoder.rope(), decoder.batch_target(),
      {}, {.pooling = is_mean ? model::PoolingRows::kAll : model::PoolingRows::kLast});
  model::MicroBatchRun run(packed, [&](const at::Tensor& embeddings) -> layers::ScoredLoss {
    all.narrow(0, static_cast<int64_t>(piece.first), std::ssize(bins)).copy_(embeddings);
    return {at::zeros({}, embeddings.options().dtype(at::kDouble)), {}};
  });
  stage.forward(run);
  stage.loss(run);
}

/// @return 0, or the exit code of a stop that any rank was asked for
int embed_all(const data::ExampleStore& texts, const weights::EmbeddingSettings& settings,
              const LoadedModel& model, Rank& rank, at::Tensor& all) {
  const parallel::Mesh mesh = model.mesh(rank);
  const model::Stage stage = model.stage();
  const std::vector<Neighbours> pieces = pieces_for_passes(
      static_cast<size_t>(texts.size()),
      [&](size_t i) { return int64_t{texts.stored(static_cast<int64_t>(i)).length}; });
  const auto stop = [&] { return rank.stop_of_any_rank(); };
  const int code = share_passes(mesh, pieces.size(), stop, [&](const SharedPass& pass) {
    embed(texts, pass.own ? pieces[*pass.own] : Neighbours{}, settings.is_mean, stage, all);
  });
  if (code != 0) return code;
  if (!mesh.counts_loss_of(rank.env().rank)) all.zero_();
  at::Tensor sum = all.to(stage.decoder().batch_target().device);
  rank.comm().world().all_reduce(sum);
  all = sum.cpu();
  if (settings.normalizes)
    all =
        all / at::linalg_vector_norm(all, 2, at::IntArrayRef{1}, /*keepdim=*/true).clamp_min(1e-12);
  return 0;
}

std::vector<data::Example> examples_of(const std::vector<data::InputRecord>& inputs,
                                       const LoadedModel& model,
                                       const weights::EmbeddingSettings& settings) {
  const int64_t limit = model.checkpoint->arch().max_position_embeddings;
  const data::EmbeddedTexts texts{
      .query_prompt = settings.query_prompt,
      .document_prompt = settings.document_prompt,
      .max_seq_len = settings.max_seq_length > 0 ? settings.max_seq_length : limit};
  std::vector<data::Example> examples(inputs.size());
  data::parallel_for(std::ssize(inputs), at::get_num_threads(), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    try {
      examples[at] = data::example_to_embed(inputs[at].record, model.text, texts, inputs[at].where);
    } catch (const data::RecordError& error) {
      throw error.without_settings();
    }
  });
  return examples;
}

void write_embeddings(const app::ScoreRequest& request,
                      const std::vector<data::InputRecord>& inputs, const at::Tensor& all) {
  const at::Tensor host = all.to(at::kFloat).contiguous();
  std::string lines;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor row = host[static_cast<int64_t>(i)];
    const float* values = row.const_data_ptr<float>();
    lines += data::output_line(inputs[i],
                               {{"embedding", std::vector<float>(values, values + row.numel())}},
                               request.output) +
             "\n";
  }
  data::write_records(request.output, lines);
}

}  // namespace

int embed_records(const app::ScoreRequest& request, const weights::EmbeddingSettings& settings,
                  Rank& rank) {
  CommandRanks ranks(request.ranks, rank);
  if (const int code = ranks.connect()) return code;
  std::vector<data::InputRecord> inputs;
  const auto read = [&] {
    inputs = data::read_input_records(input_of(request.records), at::get_num_threads());
  };
  if (const int code = rank.interruptible(read)) return code;
  LoadedModel model;
  if (const int code = ranks.load_model(request.model, model)) return code;
  data::ExampleStore texts;
  const auto tokenize = [&] {
    texts = data::ExampleStore::in_memory(examples_of(inputs, model, settings));
  };
  if (const int code = rank.interruptible(tokenize)) return code;
  at::Tensor all = at::zeros({texts.size(), model.checkpoint->arch().hidden_size}, at::kDouble);
  if (const int code = embed_all(texts, settings, model, rank, all)) {
    if (rank.is_main()) log::info("stopped; nothing was written");
    return code;
  }
  if (!at::isfinite(all).all().item<bool>()) {
    weights::require_finite(*model.checkpoint, request.model.model);
    throw DataError("an embedding is NaN or infinite", request.model.model,
                    "use --dtype fp32; if that does not help, the weights are broken");
  }
  if (!rank.is_main()) return 0;
  write_embeddings(request, inputs, all);
  log::info("embedded {} in {}", counted(inputs.size(), "text"), dtype_name(model.dtype));
  if (!request.json) return 0;
  const data::Json summary = {{"records", inputs.size()},
                              {"dimension", model.checkpoint->arch().hidden_size},
                              {"dtype", dtype_name(model.dtype)}};
  write_result(request.ranks, rank, summary.dump(2) + "\n");
  return 0;
}

}  // namespace sftrun::engine
