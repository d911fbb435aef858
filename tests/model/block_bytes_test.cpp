#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/kernels/memory.h"
#include "sftrun/model/generation_batch.h"
#include "sftrun/model/stage.h"
#include "sftrun/plan/step_memory.h"
#include "sftrun/spec/blocks.h"
#include "support/memory_since.h"
#include "support/one_thread.h"
#include "support/planned_bytes.h"
#include "support/reference.h"

// The rows of src/plan/blocks/ beside the allocator. A model has one layer, and one of its blocks needs
// most of the memory. Sizes are powers of two, so that the allocator rounds nothing up.
namespace sftrun::model {
namespace {

constexpr int64_t kTokens = 2048, kHidden = 256, kAnswer = 64;

struct BlockCase {
  const char *name, *block;
  std::function<void(spec::ArchSpec&)> widen;  ///< of `narrow_arch`
};
void PrintTo(const BlockCase& block, std::ostream* out) {
  *out << block.name;
}

/// A layer whose blocks are small.
spec::ArchSpec narrow_arch() {
  const nlohmann::json config = {
      {"model_type", "llama"},    {"vocab_size", 64},       {"hidden_size", kHidden},
      {"intermediate_size", 64},  {"num_hidden_layers", 1}, {"num_attention_heads", 1},
      {"num_key_value_heads", 1}, {"head_dim", 64},         {"tie_word_embeddings", false}};
  return spec::ArchSpec::from_hf_config(config, "config.json");
}

void widen_heads(spec::ArchSpec& arch) {
  arch.num_heads = 8, arch.num_kv_heads = 4;
}

void widen_delta_net(spec::ArchSpec& arch, int64_t key_dim, int64_t value_dim) {
  arch.layers[0].mixer = spec::Mixer::kDeltaNet;
  arch.delta_net = {.num_key_heads = 4,
                    .num_value_heads = 8,
                    .key_dim = key_dim,
                    .value_dim = value_dim,
                    .conv_kernel = 4};
}

void widen_experts(spec::ArchSpec& arch) {
  arch.layers[0].sparse = true;
  arch.mixture.num_experts = 8, arch.mixture.top_k = 2, arch.mixture.intermediate_size = 512;
}

const BlockCase kBlockCases[] = {
    {"attention", "attention", widen_heads},
    {"attention_with_norms", "attention",
     [](spec::ArchSpec& arch) { widen_heads(arch), arch.qk_norm = spec::QkNorm::kPerHead; }},
    {"attention_with_gates", "attention",
     [](spec::ArchSpec& arch) { widen_heads(arch), arch.attention_gate = true; }},
    {"delta_net", "delta_net", [](spec::ArchSpec& arch) { widen_delta_net(arch, 64, 64); }},
    {"delta_net_wide_values", "delta_net",
     [](spec::ArchSpec& arch) { widen_delta_net(arch, 32, 128); }},
    {"mlp", "mlp", [](spec::ArchSpec& arch) { arch.intermediate_size = 1024; }},
    {"experts", "experts", widen_experts},
    {"experts_with_a_shared_one", "experts",
     [](spec::ArchSpec& arch) { widen_experts(arch), arch.mixture.shared_size = 256; }},
};

TEST(BlockCases, HaveEveryMixer) {
#define SFTRUN_EXPECT_CASE(mixer)                                                                  \
  EXPECT_TRUE(std::any_of(std::begin(kBlockCases), std::end(kBlockCases), [](const BlockCase& c) { \
    return c.block == std::string_view(#mixer);                                                    \
  })) << #mixer;
  SFTRUN_MIXERS(SFTRUN_EXPECT_CASE)
#undef SFTRUN_EXPECT_CASE
}

/// A model of one layer and its plan.
class Planned {
 public:
  Planned(const spec::ArchSpec& arch, at::ScalarType dtype, Trains trains)
      : arch_(arch), dtype_(dtype) {
    kernels::install_cpu_allocator();
    config_.tuning.mode =
        trains == Trains::kFull ? config::TuningMode::kFull : config::TuningMode::kLora;
    config_.tuning.lora.r = 8;
    DecoderOptions options;
    options.dtype = dtype, options.trains = trains;
    options.lora.r = 8, options.lora.target_modules = {"all-linear"};
    decoder_ = Decoder::random(arch, options);
  }

  plan::StepContext step(int64_t tokens = kTokens) const { return {arch_, config_, shape(tokens)}; }
  plan::LayerBytes layer() const {
    return plan::layer_kinds(arch_, config_, shape(kTokens))
        .at(0)
        .bytes.at(config::Checkpointing::kNone);
  }
  Decoder& decoder() { return *decoder_; }
  config::RunConfig& config() { return config_; }

  PackedBatch batch() {
    data::Example example;
    for (int32_t t = 0; t < kTokens; ++t) example.tokens.push_back(t % 61);
    example.labels.assign(example.tokens.begin() + 1, example.tokens.end());
    example.labels.push_back(0);
    example.label_tokens = kTokens;
    return test::packed(*decoder_, {example});
  }

 private:
  plan::MicroBatchShape shape(int64_t tokens) const {
    return {.tokens = tokens, .element_bytes = static_cast<int64_t>(c10::elementSize(dtype_))};
  }
  const OneThread one_thread_;
  const spec::ArchSpec arch_;
  at::ScalarType dtype_;
  config::RunConfig config_;
  std::unique_ptr<Decoder> decoder_;
};

struct LayerMemory {
  int64_t kept = 0;         ///< beside input and output
  int64_t in_backward = 0;  ///< with the gradient of the output
};

LayerMemory layer_memory(Planned& model, layers::Recomputed recomputed) {
  const at::NoGradGuard no_grad;
  layers::Layer& layer = model.decoder().layers().front();
  layer.recomputed = recomputed;
  const PackedBatch batch = model.batch();
  const at::Tensor x = model.decoder().embed(batch.tokens);
  const MemorySince forward;
  std::unique_ptr<layers::LayerRun> run;
  at::Tensor grad =
      model.decoder().backend().layer_forward(layer, x, batch.context, &run).mul_(0.01);
  LayerMemory memory{.kept = forward.held() - static_cast<int64_t>(grad.nbytes())};
  const MemorySince backward;
  const at::Tensor dx = run->backward(grad, /*needs_input_grad=*/true);
  memory.in_backward = backward.peak() + static_cast<int64_t>(grad.nbytes());
  return memory;
}

class BlockBytes : public testing::TestWithParam<std::tuple<BlockCase, at::ScalarType>> {
 protected:
  static spec::ArchSpec arch() {
    spec::ArchSpec arch = narrow_arch();
    std::get<0>(GetParam()).widen(arch);
    return arch;
  }
  static at::ScalarType dtype() { return std::get<1>(GetParam()); }
  static plan::TrainingBytes own(const plan::StepContext& step) {
    return plan::block_row(std::get<0>(GetParam()).block).training(step, 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, BlockBytes,
                         testing::Combine(testing::ValuesIn(kBlockCases),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  c10::toString(std::get<1>(info.param));
                         });

/// What a recomputed block no longer keeps. Within 2%: norms' factors, of which a token has one.
TEST_P(BlockBytes, AreKeptForTheBackwardPass) {
  Planned model(arch(), dtype(), Trains::kNothing);
  const bool is_mixer =
      spec::layer_blocks(arch(), 0).front().block == std::get<0>(GetParam()).block;
  const int64_t all = layer_memory(model, layers::Recomputed::kNothing).kept,
                without = layer_memory(model, is_mixer ? layers::Recomputed::kMixer
                                                       : layers::Recomputed::kFeedForward)
                              .kept;
  test::expect_planned(own(model.step()).kept, all - without, {0.02, 0.02}, "kept");
}

/// With adapters. At most 7% too little; up to 12% too much: with bf16 attention packs some values in
/// that type.
TEST_P(BlockBytes, AreThePeakOfTheBackwardPass) {
  Planned model(arch(), dtype(), Trains::kLora);
  layer_memory(model, layers::Recomputed::kNothing);  // makes what stays
  const LayerMemory measured = layer_memory(model, layers::Recomputed::kNothing);
  const plan::LayerBytes planned = model.layer();
  test::expect_planned(planned.kept - model.step().rows(kHidden), measured.kept, {0.02, 0.02},
                       "kept");
  test::expect_planned(planned.in_backward, measured.in_backward, {0.07, 0.12}, "backward");
}

/// The cache within 16 KiB, a pass at most 6% too small or 12% too large.
TEST_P(BlockBytes, AreThoseOfGeneration) {
  Planned model(arch(), dtype(), Trains::kNothing);
  constexpr int64_t kPrompt = kTokens - kAnswer;  // the cache has room for 64 tokens more
  const plan::StepContext pass = model.step(kPrompt);
  int64_t cache = 0, in_pass = pass.rows(3 * kHidden);
  for (const spec::BlockTensors& block : spec::layer_blocks(arch(), 0)) {
    const plan::GenerationBytes bytes = plan::block_row(block.block).generation(pass, 0);
    cache += kTokens * bytes.cache_of_token + bytes.state_of_sequence;
    in_pass += bytes.pass;
  }
  for (const bool is_first : {true, false}) {  // the first one makes what stays
    GenerationBatch batch(model.decoder(), 1, {});
    auto options = std::make_shared<SamplingOptions>();
    options->max_new_tokens = kAnswer;
    std::vector<SequenceRequest> requests(1);
    for (int32_t t = 0; t < kPrompt; ++t) requests[0].prompt.tokens.push_back(t % 61);
    requests[0].options = options;
    const MemorySince all;
    batch.add(std::move(requests));
    batch.step();
    if (is_first) continue;
    EXPECT_NEAR(static_cast<double>(all.held()), static_cast<double>(cache), 16 << 10);
    test::expect_planned(in_pass, all.peak() - all.held(), {0.06, 0.12}, "pass");
  }
}

/// The final norm with the head, and the embedding.
class EndBytes : public testing::TestWithParam<std::tuple<Trains, at::ScalarType>> {};
INSTANTIATE_TEST_SUITE_P(Cpu, EndBytes,
                         testing::Combine(testing::Values(Trains::kLora, Trains::kFull),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Trains::kFull ? "full"
                                                                                       : "lora") +
                                  "_" + c10::toString(std::get<1>(info.param));
                         });

TEST_P(EndBytes, AreThoseOfTheHead) {
  spec::ArchSpec arch = narrow_arch();
  arch.vocab_size = 8192;
  Planned model(arch, std::get<1>(GetParam()), std::get<0>(GetParam()));
  const PackedBatch batch = model.batch();
  const Stage stage(model.decoder());
  MicroBatchRun run(batch, {.grad_scale = 1.0});
  stage.forward(run);
  const MemorySince loss;
  stage.loss(run);
  const int64_t hidden = model.step().rows(kHidden);  // the layer's output exists already
  test::expect_planned(plan::block_row("head").training(model.step(), -1).in_forward,
                       loss.peak() + hidden, {0.03, 0.03}, "head");
}

/// Chunks of logits in fp32 beside those in the compute dtype.
TEST_P(EndBytes, AreThoseOfTheHeadWithATeacher) {
  constexpr int64_t kTop = 8;
  spec::ArchSpec arch = narrow_arch();
  arch.vocab_size = 8192;
  for (const double temperature : {1.0, 2.0}) {
    Planned model(arch, std::get<1>(GetParam()), std::get<0>(GetParam()));
    model.config().train.objective = config::Objective::kDistill;
    model.config().train.kd_temperature = temperature;
    PackedBatch batch = model.batch();
    const int64_t rows = batch.labels.numel();
    batch.teacher = {.tokens = at::arange(kTop, at::kInt).expand({rows, kTop}).contiguous(),
                     .log_probs = at::full({rows, kTop + 1}, -std::log(kTop + 1.0)),
                     .mix = {.temperature = temperature}};
    const Stage stage(model.decoder());
    MicroBatchRun run(batch, {.grad_scale = 1.0});
    stage.forward(run);
    const MemorySince loss;
    stage.loss(run);
    const int64_t hidden = model.step().rows(kHidden);  // the layer's output exists already
    test::expect_planned(plan::block_row("head").training(model.step(), -1).in_forward,
                         loss.peak() + hidden, {0.03, 0.1}, "head");
  }
}

TEST_P(EndBytes, AreThoseOfTheEmbedding) {
  const at::NoGradGuard no_grad;
  Planned model(narrow_arch(), std::get<1>(GetParam()), std::get<0>(GetParam()));
  const PackedBatch batch = model.batch();
  const plan::TrainingBytes planned = plan::block_row("embedding").training(model.step(), -1);
  const MemorySince forward;
  const at::Tensor x = model.decoder().embed_for_training(batch);
  test::expect_planned(planned.in_forward, forward.peak(), {0.01, 0.01}, "forward");
  EXPECT_EQ(forward.held(), planned.kept + static_cast<int64_t>(x.nbytes()));
  if (!model.decoder().embedding().trains()) return;
  const MemorySince backward;
  layers::embedding_backward(model.decoder().embedding(), batch.tokens, x);
  EXPECT_NEAR(static_cast<double>(backward.peak()), static_cast<double>(planned.in_backward),
              4 << 10);
}

}  // namespace
}  // namespace sftrun::model
