#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/model/decoder.h"
#include "sftrun/model/generate.h"
#include "sftrun/model/stage.h"
#include "support/expect_error.h"
#include "support/reference.h"
#include "support/tensors.h"

// The decoder against what transformers gave for tiny random models
// (scripts/fixtures/make_models.py).
namespace sftrun::model {
namespace {

namespace fs = std::filesystem;
using test::close;
using test::packed;
using test::read_reference;
using test::Reference;

DecoderOptions training(Trains trains, const layers::Backend& backend) {
  DecoderOptions options;
  options.trains = trains;
  options.backend = &backend;
  return options;
}

fs::path model_path(const std::string& kind) {
  return fs::path(SFTRUN_TEST_DATA) / "models" / kind;
}

const char* const kKinds[] = {"tied-gqa", "linear-bias-sharded", "llama3-gguf", "dynamic-bf16",
                              "yarn-fp16"};

class ReferenceModels : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    reference_ = read_reference(model_path(GetParam()));
    ASSERT_EQ(reference_.examples.size(), 2U);
  }
  std::unique_ptr<Decoder> load(const DecoderOptions& options) {
    return Decoder::load(weights::Checkpoint::open(model_path(GetParam())), options);
  }
  Reference reference_;
};

// Packed side by side or one by one, the logits are the reference's.
TEST_P(ReferenceModels, Logits) {
  const auto decoder = load({});
  const PackedBatch both = packed(*decoder, reference_.examples);
  const at::Tensor logits = Stage(*decoder).logits(both, at::arange(both.num_tokens()));
  EXPECT_TRUE(close(logits, at::cat(reference_.logits), 1e-4));
  const PackedBatch second = packed(*decoder, {reference_.examples[1]});
  EXPECT_TRUE(close(Stage(*decoder).logits(second, at::arange(second.num_tokens())),
                    reference_.logits[1], 1e-4));
}

// Full training: the loss, and every parameter's gradient norm, by both backends.
TEST_P(ReferenceModels, LossAndGradients) {
  for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
    const auto decoder = load(training(Trains::kFull, *backend));
    const PackedBatch batch = packed(*decoder, reference_.examples);
    const double label_tokens = static_cast<double>(batch.labels.numel());
    const double loss_sum =
        Stage(*decoder).forward_backward(batch, {.grad_scale = 1 / label_tokens}).item<double>();
    EXPECT_NEAR(loss_sum / label_tokens / reference_.json["loss"].get<double>(), 1, 1e-5)
        << backend->name;
    size_t compared = 0;
    for (const auto& [name, norm] : reference_.json["grad_norms"].items()) {
      const layers::Parameter* parameter = decoder->parameters().find(name);
      ASSERT_NE(parameter, nullptr) << name;
      EXPECT_NEAR(parameter->grad.norm().item<double>() / norm.get<double>(), 1, 1e-3)
          << backend->name << " " << name;
      ++compared;
    }
    EXPECT_EQ(compared, decoder->parameters().parameters().size());
  }
}

TEST_P(ReferenceModels, CheckpointingGivesTheSameBits) {
  std::vector<at::Tensor> grads;
  for (const bool checkpointing : {false, true}) {
    DecoderOptions options = training(Trains::kLora, layers::fused_backend());
    options.gradient_checkpointing = checkpointing;
    const auto decoder = load(options);
    const at::NoGradGuard no_grad;
    for (layers::Parameter& p : decoder->parameters().parameters())
      p.master.copy_(test::normal(p.shape, 5) * 0.1);
    {
      const at::AutoGradMode grad_mode(true);
      Stage(*decoder).forward_backward(packed(*decoder, reference_.examples), {.grad_scale = 0.1});
    }
    grads.push_back(decoder->parameters().grad().clone());
  }
  EXPECT_TRUE(at::equal(grads[0], grads[1]));
  EXPECT_GT(grads[0].abs().max().item<double>(), 0);
}

// Greedy generation with a cache picks what the whole forward pass picks, also beside another
// sequence.
TEST_P(ReferenceModels, GenerationAgreesWithTheForwardPass) {
  const auto decoder = load({});
  SamplingOptions options;
  // "dynamic" turns the whole sequence anew as it grows; cached keys keep their angles, in
  // transformers as here.
  const bool is_dynamic = decoder->arch().ropes[0].type == spec::RopeType::kDynamic;
  options.max_new_tokens = is_dynamic ? 1 : 12;
  const std::vector<int32_t>& a = reference_.examples[0].tokens;
  const std::vector<int32_t>& b = reference_.examples[1].tokens;
  const auto together = generate(*decoder, {a, b}, {0, 1}, options);
  EXPECT_EQ(together[0].tokens, generate(*decoder, {a}, {0}, options)[0].tokens);
  data::Example so_far;
  so_far.tokens = b;
  for (const int32_t token : together[1].tokens) {
    so_far.labels.assign(so_far.tokens.size(), data::kIgnoreIndex);
    const PackedBatch batch = packed(*decoder, {so_far});
    const at::Tensor last = at::full({1}, batch.num_tokens() - 1, at::kLong);
    const at::Tensor logits = Stage(*decoder).logits(batch, last)[0];
    // A near tie may fall either way: the chosen token must be within rounding of the best.
    EXPECT_GE(logits[token].item<double>(), logits.max().item<double>() - 1e-4);
    so_far.tokens.push_back(token);
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, ReferenceModels, ::testing::ValuesIn(kKinds),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(ReferenceModelsGguf, Fp32EqualsTheDirectory) {
  const Reference reference = read_reference(model_path("llama3-gguf"));
  const auto decoder =
      Decoder::load(weights::Checkpoint::open(model_path("llama3-gguf") / "model-F32.gguf"), {});
  const PackedBatch batch = packed(*decoder, reference.examples);
  EXPECT_TRUE(close(Stage(*decoder).logits(batch, at::arange(batch.num_tokens())),
                    at::cat(reference.logits), 1e-4));
}

TEST(Targets, NothingMatchedIsAnErrorThatNamesWhatThereIs) {
  DecoderOptions options = training(Trains::kLora, layers::fused_backend());
  options.lora.target_modules = {"q_prj"};
  test::expect_error<ConfigError>(
      [&] { Decoder::load(weights::Checkpoint::open(model_path("tied-gqa")), options); },
      {"no linear layer is named `q_prj`", "did you mean `q_proj`?", "down_proj"});
  options = training(Trains::kPartial, layers::fused_backend());
  options.trainable = {"nowhere"};
  test::expect_error<ConfigError>(
      [&] { Decoder::load(weights::Checkpoint::open(model_path("tied-gqa")), options); },
      {"tuning.trainable matches no parameter", "model.norm.weight"});
  options.trainable = {"("};
  test::expect_error<ConfigError>(
      [&] { Decoder::load(weights::Checkpoint::open(model_path("tied-gqa")), options); },
      {"`(` is not a regular expression"});
}

TEST(Sampling, IsAFunctionOfSeedAndFollowsTheDistribution) {
  const auto decoder = Decoder::load(weights::Checkpoint::open(model_path("tied-gqa")), {});
  SamplingOptions options;
  options.max_new_tokens = 20;
  options.temperature = 1;
  options.seed = 3;
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto first = generate(*decoder, {prompt}, {0}, options)[0].tokens;
  EXPECT_EQ(first, generate(*decoder, {prompt}, {0}, options)[0].tokens);
  EXPECT_NE(first, generate(*decoder, {prompt}, {1}, options)[0].tokens);
  options.top_k = 1;  // only the likeliest is left
  const auto narrow = generate(*decoder, {prompt}, {0}, options)[0].tokens;
  options.temperature = 0;
  EXPECT_EQ(narrow, generate(*decoder, {prompt}, {0}, options)[0].tokens);
}

}  // namespace
}  // namespace sftrun::model
