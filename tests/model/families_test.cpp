#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "sftrun/model/generate.h"
#include "sftrun/model/stage.h"
#include "sftrun/spec/trained_names.h"
#include "support/adapter_weights.h"
#include "support/expect_error.h"
#include "support/reference.h"
#include "support/tensors.h"

// Every family against what transformers and PEFT gave for a tiny random model of it
// (scripts/fixtures/make_families.py). What is recorded here, tests/parity/families_parity.py puts
// into docs/models.md.
namespace sftrun::model {
namespace {

namespace fs = std::filesystem;
using test::close;
using test::packed;
using test::read_reference;
using test::Reference;
using test::tensor_of;

fs::path directory_of(const std::string& kind) {
  return fs::path(SFTRUN_TEST_DATA) / "families" / kind;
}

/// The folders with numbers of transformers and of PEFT. Others hold a model of another folder in
/// another form (make_released.py, make_mxfp4.py).
std::vector<std::string> kinds() {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_of(""))) {
    if (fs::exists(entry.path() / "reference.json") && fs::exists(entry.path() / "lora.json"))
      found.push_back(entry.path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

const std::vector<std::string> kExperts = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj",
                                           "mlp.gate.weight"};

/// The largest relative difference seen.
class Worst {
 public:
  void saw(const at::Tensor& actual, const at::Tensor& expected) {
    worst_ = std::max(worst_, test::relative_error(actual, expected));
  }
  std::string str() const { return fmt::format("{:.3e}", worst_); }

 private:
  double worst_ = 0;
};

/// Gradients of a loss and, where routers' load is balanced, of that loss with its coefficient.
struct Losses {
  double loss = 0;  ///< mean over labels
  std::optional<double> aux;
};
Losses forward_backward(Decoder& decoder, const PackedBatch& batch) {
  AuxLoss aux{.grad_scale = decoder.arch().mixture.aux_loss_coef.value_or(0)};
  const bool balances = aux.grad_scale > 0;
  const double label_tokens = static_cast<double>(batch.labels.numel());
  Losses losses;
  losses.loss = Stage(decoder)
                    .forward_backward(
                        batch, {.grad_scale = 1 / label_tokens, .aux = balances ? &aux : nullptr})
                    .item<double>() /
                label_tokens;
  if (balances) losses.aux = aux.value.item<double>();
  return losses;
}

void expect_losses(const Losses& losses, const nlohmann::json& expected) {
  EXPECT_NEAR(losses.loss / expected["loss"].get<double>(), 1, 1e-6);
  ASSERT_EQ(expected.contains("aux_loss"), losses.aux.has_value());
  if (!losses.aux) return;
  EXPECT_NEAR(*losses.aux / expected["aux_loss"].get<double>(), 1, 1e-6);
}

class Families : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    reference_ = read_reference(directory_of(GetParam()));
    ASSERT_EQ(reference_.examples.size(), 2U);
  }
  std::unique_ptr<Decoder> load(const DecoderOptions& options) const {
    return Decoder::load(checkpoint_, options);
  }
  at::Tensor expected(const std::string& name, at::ScalarType type) const {
    const auto* entry = file_.find(name);
    return entry ? tensor_of(*entry, type) : at::Tensor();
  }
  /// Of a parameter, though files hold it in parts.
  at::Tensor expected_gradient(const layers::Parameter& parameter) const {
    for (const weights::TensorInfo& info : checkpoint_->tensors()) {
      if (info.name != parameter.name || info.parts.empty()) continue;
      const at::Tensor whole = at::zeros(parameter.shape);
      for (const spec::TensorPart& part : info.parts) {
        const at::Tensor piece = expected("grad." + part.name, at::kFloat);
        if (!piece.defined()) return {};
        whole.flatten().narrow(0, part.offset, piece.numel()).copy_(piece.flatten());
      }
      return whole;
    }
    const at::Tensor stored = expected("grad." + parameter.name, at::kFloat);
    return stored.defined() ? layers::in_memory_order(stored, parameter.layout, parameter.shape)
                            : stored;
  }
  /// Element by element, each relative to the largest of its tensor.
  template <class Expected>
  static void expect_gradients(Decoder& decoder, Expected expected_of, Worst& worst) {
    // Where a gradient is 0 by nature (a key's bias without RoPE), both have rounding left.
    const double none = 1e-6 * decoder.parameters().grad().abs().max().item<double>();
    for (const layers::Parameter& parameter : decoder.parameters().parameters()) {
      const at::Tensor gradient = expected_of(parameter);
      ASSERT_TRUE(gradient.defined()) << parameter.name;
      if (gradient.abs().max().item<double>() < none) {
        EXPECT_LT(parameter.grad.abs().max().item<double>(), none) << parameter.name;
        continue;
      }
      EXPECT_TRUE(close(parameter.grad, gradient, 1e-4)) << parameter.name;
      worst.saw(parameter.grad, gradient);
    }
  }
  const weights::SafetensorsFile file_{directory_of(GetParam()) / "reference.safetensors"};
  const std::shared_ptr<const weights::Checkpoint> checkpoint_ =
      weights::Checkpoint::open(directory_of(GetParam()));
  Reference reference_;
};

// Packed side by side or one by one.
TEST_P(Families, Logits) {
  const auto decoder = load({});
  Worst worst;
  const auto expect_logits = [&](const PackedBatch& batch, const at::Tensor& reference) {
    const at::Tensor logits = Stage(*decoder).logits(batch, at::arange(batch.num_tokens()));
    EXPECT_TRUE(close(logits, reference, 1e-5));
    worst.saw(logits, reference);
  };
  expect_logits(packed(*decoder, reference_.examples), at::cat(reference_.logits));
  expect_logits(packed(*decoder, {reference_.examples[1]}), reference_.logits[1]);
  RecordProperty("logits", worst.str());
}

// The loss and the gradient of every parameter.
TEST_P(Families, LossAndGradients) {
  Worst worst;
  for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
    SCOPED_TRACE(backend->name);
    DecoderOptions options;
    options.trains = Trains::kFull;
    options.backend = backend;
    const auto decoder = load(options);
    expect_losses(forward_backward(*decoder, packed(*decoder, reference_.examples)),
                  reference_.json);
    expect_gradients(
        *decoder, [&](const layers::Parameter& p) { return expected_gradient(p); }, worst);
  }
  RecordProperty("gradients", worst.str());
}

// The same of an adapter's A and B, by PEFT; running layers again changes no bit.
TEST_P(Families, AdaptersLossAndGradients) {
  const nlohmann::json expected =
      nlohmann::json::parse(read_text_file(directory_of(GetParam()) / "lora.json"));
  const weights::SafetensorsFile file(directory_of(GetParam()) / "lora.safetensors");
  const auto expected_gradient = [&](const layers::Parameter& p) {
    const auto* entry = file.find(p.name);
    return entry ? layers::in_memory_order(tensor_of(*entry, at::kFloat), p.layout, p.shape)
                 : at::Tensor();
  };
  Worst worst;
  std::vector<at::Tensor> grads;
  using enum layers::Recomputed;
  const auto* fused = &layers::fused_backend();
  const auto* plain = &layers::plain_backend();
  for (const auto& [backend, checkpointing, recomputed] :
       {std::tuple{fused, false, kNothing}, std::tuple{fused, true, kNothing},
        std::tuple{plain, false, kNothing}, std::tuple{fused, false, kMixer},
        std::tuple{fused, false, kFeedForward}, std::tuple{plain, false, kMixer},
        std::tuple{plain, false, kFeedForward}}) {
    SCOPED_TRACE(fmt::format("{}{}, recomputed {}", backend->name,
                             checkpointing ? ", checkpointing" : "", static_cast<int>(recomputed)));
    DecoderOptions options;
    options.trains = Trains::kLora;
    options.backend = backend;
    options.gradient_checkpointing = checkpointing;
    options.recomputed = recomputed;
    options.lora.r = expected["r"];
    options.lora.alpha = 2.0 * expected["r"].get<double>();
    options.lora.target_parameters = expected["target_parameters"];
    const auto decoder = load(options);
    EXPECT_EQ(decoder->parameters().parameters().size(), file.entries().size());
    test::set_adapter_weights(decoder->parameters(), expected["seed"]);
    expect_losses(forward_backward(*decoder, packed(*decoder, reference_.examples)), expected);
    expect_gradients(*decoder, expected_gradient, worst);
    grads.push_back(decoder->parameters().grad().clone());
  }
  EXPECT_TRUE(at::equal(grads[0], grads[1]));
  EXPECT_TRUE(close(grads[0], grads[2], 4e-5));
  EXPECT_TRUE(at::equal(grads[0], grads[3]) && at::equal(grads[0], grads[4]));
  EXPECT_TRUE(at::equal(grads[2], grads[5]) && at::equal(grads[2], grads[6]));
  RecordProperty("adapter_gradients", worst.str());
}

// With a cache, beside another sequence, what transformers generates.
TEST_P(Families, Generation) {
  const auto decoder = load({});
  std::vector<std::vector<int32_t>> prompts;
  for (const data::Example& example : reference_.examples) prompts.push_back(example.tokens);
  SamplingOptions options;
  const at::Tensor first = expected("generated.0", at::kLong);
  options.max_new_tokens = first.numel();
  const auto results = generate(*decoder, prompts, {0, 1}, options);
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor ids = expected("generated." + std::to_string(i), at::kLong);
    const std::vector<int32_t> tokens(ids.data_ptr<int64_t>(),
                                      ids.data_ptr<int64_t>() + ids.numel());
    EXPECT_EQ(results[i].tokens, tokens) << "prompt " << i;
  }
}

// What is written for a model loads as the same model.
TEST_P(Families, ConfigComesBackTheSame) {
  const spec::ArchSpec arch = checkpoint_->arch();
  const nlohmann::json written = arch.to_hf_config();
  const spec::ArchSpec again = spec::ArchSpec::from_hf_config(written, "config.json");
  EXPECT_EQ(again.to_hf_config(), written);
  EXPECT_EQ(again.activation, arch.activation);
  ASSERT_EQ(again.layers.size(), arch.layers.size());
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    EXPECT_EQ(again.layers[i].window, arch.layers[i].window) << "layer " << i;
    EXPECT_EQ(again.layers[i].rope, arch.layers[i].rope) << "layer " << i;
  }
  ASSERT_EQ(again.ropes.size(), arch.ropes.size());
  for (size_t i = 0; i < arch.ropes.size(); ++i) {
    for (const int64_t length : {8, 100}) {
      EXPECT_EQ(spec::rope_table(again.ropes[i], length).inv_freq,
                spec::rope_table(arch.ropes[i], length).inv_freq);
    }
  }
}

struct Balanced {
  at::Tensor grad;  ///< of the load-balancing loss alone, of all parameters
  double loss = 0;
};
Balanced balanced(const std::vector<data::Example>& examples, const layers::Backend& backend,
                  bool checkpointing) {
  DecoderOptions options;
  options.trains = Trains::kFull;
  options.backend = &backend;
  options.gradient_checkpointing = checkpointing;
  const auto decoder = Decoder::load(weights::Checkpoint::open(directory_of("mixtral")), options);
  AuxLoss aux{.grad_scale = 1};
  Stage(*decoder).forward_backward(packed(*decoder, examples), {.grad_scale = 0, .aux = &aux});
  return {decoder->parameters().grad().clone(), aux.value.item<double>()};
}

// Shares and probabilities are pooled before they are multiplied: a batch of two documents has
// neither the sum nor the mean of their losses, whichever way they are computed.
TEST(RouterBalance, IsOfAWholeBatch) {
  const std::vector<data::Example> examples = read_reference(directory_of("mixtral")).examples;
  const Balanced both = balanced(examples, layers::fused_backend(), false);
  const Balanced again = balanced(examples, layers::fused_backend(), true);
  const Balanced plain = balanced(examples, layers::plain_backend(), false);
  EXPECT_TRUE(at::equal(both.grad, again.grad));
  EXPECT_EQ(both.loss, again.loss);
  EXPECT_TRUE(close(both.grad, plain.grad, 2e-5));
  EXPECT_NEAR(both.loss / plain.loss, 1, 1e-6);
  double mean = 0;
  for (const data::Example& example : examples)
    mean += balanced({example}, layers::fused_backend(), false).loss / 2;
  EXPECT_GT(std::abs(mean - both.loss), 1e-3);
  EXPECT_GT(both.grad.abs().max().item<double>(), 1e-3);
}

// Without labels to learn, without tokens, and where nobody asks.
TEST(RouterBalance, EmptyBatchesAddNothing) {
  DecoderOptions options;
  options.trains = Trains::kFull;
  const auto decoder = Decoder::load(weights::Checkpoint::open(directory_of("mixtral")), options);
  AuxLoss aux{.grad_scale = 1, .value = at::scalar_tensor(7, at::kDouble)};
  const at::Tensor loss =
      Stage(*decoder).forward_backward(PackedBatch{}, {.grad_scale = 1, .aux = &aux});
  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_EQ(aux.value.item<double>(), 0);
  Stage(*decoder).forward_backward(
      packed(*decoder, read_reference(directory_of("mixtral")).examples), {.grad_scale = 0});
  EXPECT_EQ(decoder->parameters().grad().abs().max().item<double>(), 0);
}

std::unique_ptr<Decoder> load_with(const std::string& kind, const spec::LoraSpec& lora) {
  DecoderOptions options;
  options.trains = Trains::kLora;
  options.lora = lora;
  return Decoder::load(weights::Checkpoint::open(directory_of(kind)), options);
}

// As part of a model that sees images, with all experts of a layer in one tensor.
TEST(Released, FormGivesTheSameLogits) {
  for (const std::string kind : {"qwen3_5_moe", "gemma4", "gemma4_moe"}) {
    SCOPED_TRACE(kind);
    const Reference reference = read_reference(directory_of(kind));
    const auto decoder =
        Decoder::load(weights::Checkpoint::open(directory_of(kind + "_released")), {});
    const PackedBatch both = packed(*decoder, reference.examples);
    EXPECT_TRUE(close(Stage(*decoder).logits(both, at::arange(both.num_tokens())),
                      at::cat(reference.logits), 1e-5));
  }
}

TEST(ExpertTargets, AreNamedAsPeftNamesThem) {
  spec::LoraSpec lora;
  lora.target_modules = {"q_proj"};
  const auto names = [&](std::vector<std::string> parameters) {
    lora.target_parameters = std::move(parameters);
    std::vector<std::string> found;
    const auto decoder = load_with("mixtral", lora);
    for (const layers::Parameter& p : decoder->parameters().parameters()) {
      if (p.unit == 1 && p.name.find("mlp") != std::string::npos) found.push_back(p.name);
    }
    return found;
  };
  const std::string layer = "base_model.model.model.layers.0.mlp.";
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({"experts.down_proj"}),
            (Names{layer + "experts.lora_A.weight", layer + "experts.lora_B.weight"}));
  EXPECT_EQ(names({"mlp.experts.gate_up_proj"}),
            (Names{layer + "experts.lora_A.weight", layer + "experts.lora_B.weight"}));
  EXPECT_EQ(
      names(kExperts),
      (Names{layer + "gate.lora_A.weight", layer + "gate.lora_B.weight",
             layer + "experts.base_layer.lora_A.weight", layer + "experts.base_layer.lora_B.weight",
             layer + "experts.lora_A.weight", layer + "experts.lora_B.weight"}));
}

// As the released models are stored, and as a GGUF file of the same numbers.
TEST(Mxfp4, BothFilesGiveTheReferencesLogitsAndTexts) {
  const fs::path directory = directory_of("gpt_oss_mxfp4");
  const Reference reference = read_reference(directory);
  const weights::SafetensorsFile file(directory / "reference.safetensors");
  std::vector<std::vector<int32_t>> prompts;
  for (const data::Example& example : reference.examples) prompts.push_back(example.tokens);
  for (const fs::path& path : {directory, directory / "model-MXFP4.gguf"}) {
    SCOPED_TRACE(path.filename());
    const auto decoder = Decoder::load(weights::Checkpoint::open(path), {});
    const PackedBatch both = packed(*decoder, reference.examples);
    EXPECT_TRUE(close(Stage(*decoder).logits(both, at::arange(both.num_tokens())),
                      at::cat(reference.logits), 1e-5));
    SamplingOptions options;
    options.max_new_tokens = tensor_of(*file.find("generated.0"), at::kLong).numel();
    const auto results = generate(*decoder, prompts, {0, 1}, options);
    for (size_t i = 0; i < results.size(); ++i) {
      const at::Tensor ids =
          tensor_of(*file.find("generated." + std::to_string(i)), at::kLong).to(at::kInt);
      EXPECT_EQ(results[i].tokens, std::vector<int32_t>(ids.data_ptr<int32_t>(),
                                                        ids.data_ptr<int32_t>() + ids.numel()));
    }
  }
}

TEST(ExpertTargets, MistakesAreAnswered) {
  spec::LoraSpec lora;
  lora.target_modules = {"gate_proj"};
  test::expect_error<ConfigError>(
      [&] { load_with("qwen3_moe", lora); },
      {"`gate_proj` names experts", "tuning.lora.target_parameters: [mlp.experts.gate_up_proj"});
  lora.target_modules = {"all-linear"};
  lora.target_parameters = {"experts.gate_proj"};
  test::expect_error<ConfigError>([&] { load_with("mixtral", lora); },
                                  {"no parameter of the experts is named `experts.gate_proj`"});
  test::expect_error<ConfigError>([&] { load_with("llama", lora); }, {"the model has no experts"});
  lora.target_parameters = kExperts;
  lora.dropout = 0.1;
  test::expect_error<ConfigError>([&] { load_with("mixtral", lora); },
                                  {"adapters of experts do not support dropout"});
}

// A fixture that lost a file would not be tested.
TEST(FamilyKinds, AreFound) {
  EXPECT_GE(kinds().size(), 20U);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Families, ::testing::ValuesIn(kinds()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace sftrun::model
