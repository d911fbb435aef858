#include "sftrun/train/micro_batch_schedule.h"

#include "sftrun/model/stage.h"

namespace sftrun::train {
namespace {

model::PassGraphs::Options graph_options(const parallel::Strategy& strategy,
                                         const config::TrainConfig& config) {
  return {.use = graph_use(config.cuda_graphs),
          .has_aux_loss = config.router_aux_loss_coef.value_or(0) > 0,
          .communicates_in_passes = strategy.communicates_in_passes()};
}

class OneStageSchedule final : public MicroBatchSchedule {
 public:
  OneStageSchedule(model::Decoder& decoder, parallel::Strategy& strategy,
                   const config::TrainConfig& config)
      : passes_(model::Stage(decoder, &strategy), graph_options(strategy, config)),
        is_pinned_(config.dataloader_pin_memory) {}

  StepSums run(const StepWork& work) override {
    StepSums sums;
    for (int64_t i = 0; i < work.num_micro_batches; ++i) {
      const data::Batch batch = work.micro_batch(i);
      model::AuxLoss aux{.grad_scale = work.aux_grad_scale.value_or(0)};
      sums.losses.push_back(
          passes_.forward_backward(batch, work.randomness, is_pinned_,
                                   {.grad_scale = work.grad_scale,
                                    .aux = work.aux_grad_scale ? &aux : nullptr,
                                    .completes_gradients = i + 1 == work.num_micro_batches}));
      if (work.aux_grad_scale) sums.aux_losses.push_back(aux.value);
      sums.label_tokens += batch.label_tokens;
    }
    return sums;
  }

  void log_use() const override { passes_.log_use(); }

 private:
  model::PassGraphs passes_;
  bool is_pinned_;
};

}  // namespace

std::unique_ptr<MicroBatchSchedule> one_stage_schedule(model::Decoder& decoder,
                                                       parallel::Strategy& strategy,
                                                       const config::TrainConfig& config) {
  return std::make_unique<OneStageSchedule>(decoder, strategy, config);
}

model::GraphUse graph_use(config::CudaGraphs choice) {
  switch (choice) {
    case config::CudaGraphs::kOff:
      return model::GraphUse::kOff;
    case config::CudaGraphs::kOn:
      return model::GraphUse::kAlways;
    case config::CudaGraphs::kAuto:
      break;
  }
  return model::GraphUse::kWhereItPays;
}

}  // namespace sftrun::train
