#include "evaluated_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/data/batch_plan.h"
#include "sftrun/model/stage.h"

namespace sftrun::engine {
namespace {

/// Consecutive examples of a part, with about as many tokens as a pass needs to be fast.
std::vector<data::Bin> bins_of(const data::ExampleStore& examples, const data::DatasetPart& part) {
  constexpr int64_t kTokens = 4096;
  std::vector<data::Bin> bins;
  int64_t tokens = 0;
  for (int64_t i = part.begin; i < part.end; ++i) {
    const int64_t length = examples.stored(i).length;
    if (bins.empty() || tokens + length > kTokens) {
      bins.emplace_back();
      tokens = 0;
    }
    bins.back().push_back(i);
    tokens += length;
  }
  return bins;
}

LabelSums sums_of_bin(model::Decoder& decoder, const data::ExampleStore& examples,
                      const data::Bin& bin) {
  const data::Batch batch = data::make_batch(examples, {bin}, 0, 1);
  const model::PackedBatch packed =
      model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), {});
  if (packed.labels.numel() == 0) return {};
  const model::Stage stage(decoder);
  model::MicroBatchRun run(packed);
  stage.forward(run);
  return {.loss = stage.label_losses(run).sum(at::kDouble).item<double>(),
          .labels = packed.labels.numel(),
          .correct = stage.num_correct(run).item<int64_t>()};
}

}  // namespace

LabelSums& LabelSums::operator+=(const LabelSums& other) {
  loss += other.loss;
  labels += other.labels;
  correct += other.correct;
  return *this;
}

std::vector<LabelSums> label_sums(model::Decoder& decoder, const data::Dataset& dataset,
                                  parallel::Communicator& comm, const std::string& name,
                                  const std::function<bool()>& stop_requested) {
  const at::NoGradGuard no_grad;
  std::vector<double> own;
  int64_t bin_number = 0;
  for (const data::DatasetPart& part : dataset.parts()) {
    LabelSums sums;
    for (const data::Bin& bin : bins_of(dataset.examples(), part)) {
      comm.activity().set_work(Work::kEvaluating);
      if (bin_number++ % comm.world_size() == comm.rank() && !stop_requested())
        sums += sums_of_bin(decoder, dataset.examples(), bin);
    }
    own.insert(own.end(),
               {sums.loss, static_cast<double>(sums.labels), static_cast<double>(sums.correct)});
  }
  comm.barrier("losses of " + name);  // one rank may take long
  std::vector<LabelSums> totals(dataset.parts().size());
  for (const std::vector<double>& of_rank : comm.all_gather(own)) {
    for (size_t i = 0; i < totals.size(); ++i) {
      totals[i] += {of_rank[3 * i], static_cast<int64_t>(of_rank[3 * i + 1]),
                    static_cast<int64_t>(of_rank[3 * i + 2])};
    }
  }
  return totals;
}

}  // namespace sftrun::engine
