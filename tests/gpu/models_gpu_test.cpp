#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "sftrun/model/decoder.h"
#include "sftrun/model/stage.h"
#include "sftrun/train/adamw.h"
#include "support.h"
#include "support/reference.h"
#include "support/tensors.h"

/// Whole models, and optimizers, on a card beside the same on a CPU.
namespace sftrun {
namespace {

using test::data;
using test::kCard;

struct Step {
  double loss = 0, balance = 0;
  at::Tensor grads;
};

/// @param is_balanced the routers' load-balancing loss is added
Step step_of(const std::shared_ptr<const weights::Checkpoint>& model, model::DecoderOptions options,
             at::Device device, bool is_balanced) {
  const at::NoGradGuard no_grad;
  options.device = device;
  const auto decoder = model::Decoder::load(model, options);
  for (layers::Parameter& parameter : decoder->parameters().parameters())
    if (options.trains == model::Trains::kLora) parameter.master.fill_(0.01);
  decoder->parameters().refresh_compute();
  const auto examples = test::within_vocabulary(
      test::read_reference(data("models/tied-gqa")).examples, model->arch().vocab_size);
  Step step;
  model::AuxLoss aux{.grad_scale = 10};
  step.loss = model::Stage(*decoder)
                  .forward_backward(test::packed(*decoder, examples, device),
                                    {.grad_scale = 1.0, .aux = is_balanced ? &aux : nullptr})
                  .item<double>();
  if (is_balanced) step.balance = aux.value.item<double>();
  step.grads = decoder->parameters().grad().cpu();
  return step;
}

void expect_same_step(const std::shared_ptr<const weights::Checkpoint>& model,
                      const model::DecoderOptions& options, double tolerance,
                      bool is_balanced = false) {
  const Step here = step_of(model, options, at::kCPU, is_balanced),
             there = step_of(model, options, kCard, is_balanced);
  EXPECT_NEAR(there.loss / here.loss, 1, tolerance);
  EXPECT_NEAR(there.balance, here.balance, tolerance * here.balance);
  EXPECT_TRUE(test::close(there.grads, here.grads, 20 * tolerance));
}

TEST(GpuModels, EveryFamilyTrainsAsOnACpu) {
  for (const auto& entry : std::filesystem::directory_iterator(data("families"))) {
    if (!std::filesystem::exists(entry.path() / "model.safetensors")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const std::shared_ptr<const weights::Checkpoint> model =
        weights::Checkpoint::open(entry.path());
    model::DecoderOptions options;
    for (const model::Trains trains : {model::Trains::kLora, model::Trains::kFull}) {
      options.trains = trains;
      expect_same_step(model, options, 1e-5);
    }
    options.trains = model::Trains::kLora;
    options.gradient_checkpointing = true;
    expect_same_step(model, options, 1e-5);
  }
}

/// Adapters on experts and routers, and everything, with the routers' load balanced.
TEST(GpuModels, MixturesTrainAsOnACpu) {
  const std::vector<std::pair<std::string, std::string>> families = {
      {"mixtral", "mlp.gate.weight"},
      {"qwen3_moe", "mlp.gate.weight"},
      {"gpt_oss", "mlp.router.weight"},
      {"qwen3_5_moe", "mlp.gate.weight"},
      {"gemma4_moe", ""}};  // whose router is one of all linear modules
  for (const auto& [name, router] : families) {
    SCOPED_TRACE(name);
    const std::shared_ptr<const weights::Checkpoint> model =
        weights::Checkpoint::open(data("families/" + name));
    model::DecoderOptions options;
    options.trains = model::Trains::kLora;
    options.lora.target_parameters = {"experts.gate_up_proj", "experts.down_proj"};
    if (!router.empty()) options.lora.target_parameters.push_back(router);
    expect_same_step(model, options, 1e-5, /*is_balanced=*/true);
    options.gradient_checkpointing = true;
    expect_same_step(model, options, 1e-5, /*is_balanced=*/true);
    options = {};
    options.trains = model::Trains::kFull;
    expect_same_step(model, options, 1e-5, /*is_balanced=*/true);
  }
}

TEST(GpuModels, QuantisedBasesTrainAsOnACpu) {
  for (const char* name : {"models/bnb-nf4", "models/bnb-fp4", "models/bnb-int8",
                           "models/llama3-gguf/model-Q8_0.gguf", "families/gpt_oss_mxfp4"}) {
    SCOPED_TRACE(name);
    model::DecoderOptions options;
    options.trains = model::Trains::kLora;
    options.base.keep_stored = true;
    expect_same_step(weights::Checkpoint::open(data(name)), options, 1e-5);
  }
}

/// A last bit decides between codes a sixteenth apart, and on a card the gradients of q, k and v
/// are rounded together.
TEST(GpuModels, Fp8TrainsAsOnACpu) {
  model::DecoderOptions options;
  options.trains = model::Trains::kLora;
  options.base.keep_stored = true;
  expect_same_step(weights::Checkpoint::open(data("models/fp8-dynamic")), options, 2e-3);
}

/// Of every kind of moments: what a gate decides on the card is what the host decides, and behind a
/// closed one nothing moves.
TEST(GpuOptimizers, AGateDecidesAsTheHost) {
  const at::NoGradGuard no_grad;
  constexpr double kMaxNorm = 3;
  for (const bool is_8bit : {false, true}) {
    for (const bool on_host : {false, true}) {
      at::Tensor weights[2];
      for (const bool is_gated : {false, true}) {
        layers::ParameterStore store;
        store.add("whole", {512, 256}, 0, true);
        store.add("odd", {67, 65}, 0, true);
        store.allocate(at::kBFloat16, kCard);
        store.master().copy_(test::normal({store.master().numel()}, 1));
        train::AdamW optimizer(store, {.weight_decay = 0.1,
                                       .is_8bit = is_8bit,
                                       .moments_on_host = on_host,
                                       .values_of_part = 4096});
        at::Tensor gate = kernels::open_gate(kCard);
        const auto norm_of = [](layers::ParameterStore& of) {
          return kernels::sum_of_squares(of.grad()).sqrt_();
        };
        const auto decide = [&](const at::Tensor& loss) {
          const at::Tensor numbers = at::stack({norm_of(store), loss.to(kCard)}).unsqueeze(0);
          kernels::decide_update_(gate, numbers, {.num_losses = 1, .max_norm = kMaxNorm});
        };
        for (uint64_t step = 0; step < 5; ++step) {
          store.grad().copy_(test::normal({store.grad().numel()}, 10 + step));
          const double norm = norm_of(store).item<double>();
          decide(at::scalar_tensor(2, at::kDouble));
          if (is_gated)
            optimizer.step(1e-2, gate);
          else
            optimizer.step(1e-2, train::clip_factor(norm, kMaxNorm));
        }
        weights[is_gated ? 1 : 0] = store.master().cpu();
        decide(at::scalar_tensor(std::nan(""), at::kDouble));
        optimizer.step(1e-2, gate);
        EXPECT_TRUE(at::equal(weights[is_gated ? 1 : 0], store.master().cpu()));
      }
      EXPECT_TRUE(at::equal(weights[0], weights[1])) << is_8bit << on_host;
    }
  }
}

/// Moments that come and go in parts are updated as those that stay.
TEST(GpuOptimizers, MomentsInHostMemoryAreTheSame) {
  const at::NoGradGuard no_grad;
  for (const bool is_8bit : {false, true}) {
    at::Tensor weights[2];
    for (const bool on_host : {false, true}) {
      layers::ParameterStore store;
      store.add("whole", {512, 256}, 0, true);
      store.add("odd", {67, 65}, 0, true);
      store.add("norm", {600}, 0, false);
      store.allocate(at::kBFloat16, kCard);
      store.master().copy_(test::normal({store.master().numel()}, 1));
      train::AdamW optimizer(store, {.weight_decay = 0.1,
                                     .is_8bit = is_8bit,
                                     .moments_on_host = on_host,
                                     .values_of_part = 4096});
      for (uint64_t step = 0; step < 20; ++step) {
        store.grad().copy_(test::normal({store.grad().numel()}, 10 + step));
        optimizer.step(1e-2, 0.5);
      }
      EXPECT_TRUE(optimizer.is_finite());
      weights[on_host ? 1 : 0] = store.master().cpu();
    }
    EXPECT_TRUE(at::equal(weights[0], weights[1])) << is_8bit;
  }
}

}  // namespace
}  // namespace sftrun
