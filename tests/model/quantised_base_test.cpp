#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/memory.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/stage.h"
#include "sftrun/weights/safetensors.h"
#include "support/quant_formats.h"
#include "support/reference.h"
#include "support/tensors.h"

namespace sftrun::model {
namespace {

std::shared_ptr<const weights::Checkpoint> base_checkpoint() {
  return weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa");
}

TEST(QuantisedBase, IsWhatTheCheckpointHoldsInFourBits) {
  const auto model = base_checkpoint();
  DecoderOptions options;
  options.trains = Trains::kLora;
  options.base.quant = QuantOptions{};
  const auto decoder = Decoder::load(model, options);
  options.base.quant.reset();
  const auto dense = Decoder::load(model, options);
  const auto linears = decoder->linears(), of_dense = dense->linears();
  uint64_t saved = 0;
  for (size_t i = 0; i < linears.size(); ++i) {
    ASSERT_TRUE(linears[i]->quantized) << linears[i]->name;
    EXPECT_FALSE(linears[i]->weight.defined());
    const at::Tensor& weight = of_dense[i]->weight;
    EXPECT_TRUE(at::equal(kernels::dequantize(*linears[i]->quantized, at::kFloat),
                          kernels::dequantize(kernels::quantize(weight, {}), at::kFloat)))
        << linears[i]->name;
    EXPECT_LT((kernels::dequantize(*linears[i]->quantized, at::kFloat) - weight)
                  .abs()
                  .max()
                  .item<float>(),
              0.16 * weight.abs().max().item<float>())
        << linears[i]->name;
    saved += weight.nbytes() - linears[i]->quantized->nbytes();
  }
  EXPECT_EQ(decoder->base_bytes(), dense->base_bytes() - saved);
}

/// Of more tokens than a product for a few rows takes, which sums in another order.
std::vector<data::Example> many(const std::vector<data::Example>& examples) {
  std::vector<data::Example> all;
  for (size_t tokens = 0; tokens < 200;
       tokens += examples[all.size() % examples.size()].tokens.size())
    all.push_back(examples[all.size() % examples.size()]);
  return all;
}

/// B of a fresh adapter is zero, and would hide A's gradient.
void fill_adapters(Decoder& decoder) {
  const at::NoGradGuard no_grad;
  for (const layers::Parameter& parameter : decoder.parameters().parameters()) {
    at::Tensor master = parameter.master;
    master.fill_(0.01);
  }
  decoder.parameters().refresh_compute();
}

/// The same losses as a dense model of the same values.
TEST(QuantisedBase, ComputesWithTheRoundedValues) {
  const auto model = base_checkpoint();
  for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
    DecoderOptions options;
    options.trains = Trains::kLora;
    options.backend = backend;
    const auto dense = Decoder::load(model, options);
    options.base.quant = QuantOptions{.block_size = 32};
    const auto decoder = Decoder::load(model, options);
    const auto linears = decoder->linears(), of_dense = dense->linears();
    for (size_t i = 0; i < linears.size(); ++i)
      of_dense[i]->weight = kernels::dequantize(*linears[i]->quantized, at::kFloat);
    const test::Reference reference =
        test::read_reference(std::filesystem::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa");
    double losses[2];
    at::Tensor grads[2];
    int at = 0;
    for (Decoder* one : {decoder.get(), dense.get()}) {
      fill_adapters(*one);
      const PackedBatch batch = test::packed(*one, many(reference.examples));
      losses[at] = Stage(*one).forward_backward(batch, {.grad_scale = 1.0}).item<double>();
      grads[at++] = one->parameters().grad().clone();
    }
    EXPECT_EQ(losses[0], losses[1]) << backend->name;
    EXPECT_TRUE(at::equal(grads[0], grads[1])) << backend->name;
    EXPECT_GT(grads[0].abs().max().item<float>(), 0);
  }
}

std::filesystem::path data(const std::string& name) {
  return std::filesystem::path(SFTRUN_TEST_DATA) / name;
}

double loss_of(Decoder& decoder, const std::vector<data::Example>& examples, at::Tensor* grad) {
  fill_adapters(decoder);
  const PackedBatch batch = test::packed(decoder, examples);
  const double loss = Stage(decoder).forward_backward(batch, {.grad_scale = 1.0}).item<double>();
  *grad = decoder.parameters().grad().clone();
  return loss;
}

/// Bytes of the matrices that stay in the file's form.
uint64_t bytes_as_stored(const weights::Checkpoint& checkpoint) {
  uint64_t total = 0;
  for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
    if (checkpoint.packed(tensor.name)) total += tensor.stored_bytes;
  }
  return total;
}

/// Every family, some with the rows of q and k in another order, tied or with a head of their own.
TEST(QuantisedBase, BlocksOfAGgufFileTrainAsTheirValues) {
  for (const char* name :
       {"models/llama3-gguf/model-Q8_0.gguf", "converted/qwen2-Q8_0.gguf",
        "converted/gemma3-Q8_0.gguf", "converted/phi3-Q8_0.gguf", "converted/qwen3_5-Q8_0.gguf",
        "converted/mixtral-Q8_0.gguf", "converted/qwen3_moe-Q8_0.gguf",
        "converted/gpt_oss_mxfp4-MXFP4.gguf", "families/gpt_oss_mxfp4"}) {
    SCOPED_TRACE(name);
    const std::shared_ptr<const weights::Checkpoint> model = weights::Checkpoint::open(data(name));
    ASSERT_GT(bytes_as_stored(*model), 0U);
    const auto examples = test::within_vocabulary(
        many(test::read_reference(data("models/llama3-gguf")).examples), model->arch().vocab_size);
    for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
      DecoderOptions options;
      options.trains = Trains::kLora;
      options.backend = backend;
      const auto unpacked = Decoder::load(model, options);
      options.base.keep_stored = true;
      const auto kept = Decoder::load(model, options);
      at::Tensor grads[2];
      const double loss = loss_of(*kept, examples, &grads[0]),
                   expected = loss_of(*unpacked, examples, &grads[1]);
      if (model->arch().mixture.num_experts == 0) {
        EXPECT_EQ(loss, expected);
        EXPECT_TRUE(at::equal(grads[0], grads[1]));
      } else {  // a few rows of each expert, summed in another order
        EXPECT_NEAR(loss / expected, 1, 1e-6);
        EXPECT_TRUE(test::close(grads[0], grads[1], 1e-5));
      }
      uint64_t unpacked_bytes = 0;
      for (const weights::TensorInfo& tensor : model->tensors()) {
        if (model->packed(tensor.name))
          unpacked_bytes += static_cast<uint64_t>(tensor.numel()) * sizeof(float);
      }
      EXPECT_EQ(unpacked->base_bytes() - kept->base_bytes(),
                unpacked_bytes - bytes_as_stored(*model));
    }
  }
}

/// The matrices of all experts at once, cut between them. A dense model of the same values computes
/// the same; of FP8 only experts are compared, for other products round activations.
TEST(QuantisedBase, ExpertsTrainAsTheirRoundedValues) {
  using Names = std::vector<std::string>;
  for (const auto& [name, others] :
       {std::pair<std::string, Names>{"families/mixtral", {"self_attn"}},
        {"families/qwen3_moe", {"self_attn", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}}}) {
    const std::shared_ptr<const weights::Checkpoint> model = weights::Checkpoint::open(data(name));
    const auto examples = test::within_vocabulary(
        many(test::read_reference(data("models/tied-gqa")).examples), model->arch().vocab_size);
    std::vector<QuantOptions> quants = {{.block_size = 16, .nested = false}};
    for (const QuantFormat format : test::made_formats())
      quants.push_back({.format = format, .block_size = 16});
    for (const QuantOptions& quant : quants) {
      for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
        SCOPED_TRACE(name + " " + std::string(quant_info(quant.format).name) + " " + backend->name);
        DecoderOptions options;
        options.trains = Trains::kLora;
        options.backend = backend;
        const auto dense = Decoder::load(model, options);
        options.base.quant = quant;
        options.base.skip_modules = others;
        const auto decoder = Decoder::load(model, options);
        size_t experts = 0;
        for (size_t l = 0; l < dense->layers().size(); ++l) {
          const auto of_dense = dense->layers()[l].experts(),
                     packed = decoder->layers()[l].experts();
          for (size_t i = 0; i < packed.size(); ++i, ++experts) {
            ASSERT_TRUE(packed[i]->quantized);
            of_dense[i]->weight =
                kernels::dequantize(*packed[i]->quantized, at::kFloat).view_as(of_dense[i]->weight);
          }
        }
        EXPECT_GT(experts, 0U);
        EXPECT_LT(decoder->base_bytes(), dense->base_bytes());
        at::Tensor grads[2];
        const double loss = loss_of(*decoder, examples, &grads[0]),
                     expected = loss_of(*dense, examples, &grads[1]);
        EXPECT_NEAR(loss / expected, 1, 1e-6);
        EXPECT_TRUE(test::close(grads[0], grads[1], 1e-5));
      }
    }
  }
}

/// Updates of the embedding and the head, beside blocks that stay packed.
TEST(QuantisedBase, EndsAreAdaptedOverBlocks) {
  for (const char* name : {"models/llama3-gguf/model-Q8_0.gguf", "converted/gemma3-Q8_0.gguf"}) {
    SCOPED_TRACE(name);
    const std::shared_ptr<const weights::Checkpoint> model = weights::Checkpoint::open(data(name));
    const auto examples = test::within_vocabulary(
        test::read_reference(data("models/llama3-gguf")).examples, model->arch().vocab_size);
    for (const bool dora : {false, true}) {
      DecoderOptions options;
      options.trains = Trains::kLora;
      options.lora.target_modules = {"all-linear", "embed_tokens", "lm_head"};
      options.lora.dora = dora;
      const auto unpacked = Decoder::load(model, options);
      options.base.keep_stored = true;
      const auto kept = Decoder::load(model, options);
      EXPECT_TRUE(kept->embedding().quantized && kept->head().linear.quantized);
      at::Tensor grads[2];
      const double loss = loss_of(*kept, examples, &grads[0]),
                   expected = loss_of(*unpacked, examples, &grads[1]);
      EXPECT_NEAR(loss / expected, 1, 1e-6);
      EXPECT_TRUE(test::close(grads[0], grads[1], 2e-5));
    }
  }
}

/// Embedding and head by `embeddings`, modules by name.
TEST(QuantisedBase, WhatStaysDenseCanBeChosen) {
  const auto model = base_checkpoint();
  DecoderOptions options;
  options.trains = Trains::kLora;
  options.base.quant = QuantOptions{};
  options.base.embeddings = true;
  options.base.skip_modules = {"layers.1.mlp", "q_proj"};
  const auto decoder = Decoder::load(model, options);
  EXPECT_TRUE(decoder->head().linear.quantized);  // tied
  for (const layers::Linear* linear : decoder->linears()) {
    const bool is_skipped =
        linear->name.find("layers.1.mlp.") != std::string::npos || linear->name.ends_with("q_proj");
    EXPECT_EQ(linear->quantized.has_value(), !is_skipped) << linear->name;
  }
  options.base.skip_modules = {"layers.7"};
  EXPECT_THROW(Decoder::load(model, options), ConfigError);
}

/// What transformers + bitsandbytes saved (scripts/fixtures/make_bnb_model.py): the very codes
/// stay, and logits are theirs.
TEST(QuantisedBase, DirectoriesOfBitsandbytesLoadAsTheyAre) {
  for (const char* form : {"nf4", "fp4"}) {
    SCOPED_TRACE(form);
    const std::filesystem::path directory = data(std::string("models/bnb-") + form);
    const std::shared_ptr<const weights::Checkpoint> model = weights::Checkpoint::open(directory);
    const weights::SafetensorsFile values(directory / "dequantised.safetensors");
    const test::Reference reference = test::read_reference(directory);
    for (const bool keeps : {false, true}) {
      DecoderOptions options;
      options.trains = Trains::kLora;
      options.base.keep_stored = keeps;
      const auto decoder = Decoder::load(model, options);
      for (const layers::Linear* linear : decoder->linears()) {
        ASSERT_EQ(linear->quantized.has_value(), keeps) << linear->name;
        const at::Tensor expected =
            test::tensor_of(*values.find(linear->name + ".weight"), at::kFloat);
        EXPECT_TRUE(at::equal(linear->matrix().values(at::kFloat), expected)) << linear->name;
      }
      for (size_t i = 0; i < reference.examples.size(); ++i) {
        const PackedBatch batch = test::packed(*decoder, {reference.examples[i]});
        const at::Tensor rows = at::arange(reference.logits[i].size(0));
        EXPECT_TRUE(test::close(Stage(*decoder).logits(batch, rows), reference.logits[i], 1e-5));
      }
    }
  }
}

/// In eight bits as transformers saves and loads them (scripts/fixtures/make_eight_bits.py): int8's
/// logits are those of its values, with FP8 activations are rounded as transformers rounds them.
TEST(QuantisedBase, DirectoriesInEightBitsLoadAsTheyAre) {
  for (const bool is_fp8 : {false, true}) {
    SCOPED_TRACE(is_fp8);
    const std::filesystem::path directory = data(is_fp8 ? "models/fp8-dynamic" : "models/bnb-int8");
    const std::shared_ptr<const weights::Checkpoint> model = weights::Checkpoint::open(directory);
    const weights::SafetensorsFile values(directory / "dequantised.safetensors");
    const test::Reference reference = test::read_reference(directory);
    for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
      for (const bool keeps : {false, true}) {
        DecoderOptions options;
        options.trains = Trains::kLora;
        options.backend = backend;
        options.base.keep_stored = keeps;
        const auto decoder = Decoder::load(model, options);
        for (const layers::Linear* linear : decoder->linears()) {
          ASSERT_EQ(linear->quantized.has_value(), keeps) << linear->name;
          const at::Tensor expected =
              test::tensor_of(*values.find(linear->name + ".weight"), at::kFloat);
          EXPECT_TRUE(at::equal(linear->matrix().values(at::kFloat), expected)) << linear->name;
        }
        if (is_fp8 && !keeps) continue;  // unpacked it multiplies unrounded activations
        for (size_t i = 0; i < reference.examples.size(); ++i) {
          const PackedBatch batch = test::packed(*decoder, {reference.examples[i]});
          const at::Tensor rows = at::arange(reference.logits[i].size(0));
          EXPECT_TRUE(test::close(Stage(*decoder).logits(batch, rows), reference.logits[i], 1e-5));
        }
      }
    }
  }
}

/// FP8 with a scale per block and integers of 4 bits in groups (scripts/fixtures/make_fp8_blocks.py,
/// make_int4.py): logits are those of the values, and gradients those of a dense model of them.
class KeptBase : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(QuantisedBase, KeptBase,
                         testing::Values("fp8-blocks", "int4-awq", "int4-gptq", "int4-compressed"));
TEST_P(KeptBase, TrainsAsItsValues) {
  const std::filesystem::path directory = data("models") / GetParam();
  const std::shared_ptr<const weights::Checkpoint> model = weights::Checkpoint::open(directory);
  const test::Reference reference = test::read_reference(directory);
  for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
    double losses[2];
    at::Tensor grads[2];
    for (const bool keeps : {false, true}) {
      SCOPED_TRACE(std::string(backend->name) + (keeps ? ", kept" : ""));
      DecoderOptions options;
      options.trains = Trains::kLora;
      options.backend = backend;
      options.base.keep_stored = keeps;
      const auto decoder = Decoder::load(model, options);
      for (const layers::Linear* linear : decoder->linears()) {
        const bool is_packed = model->packed(linear->name + ".weight").has_value();
        ASSERT_EQ(linear->quantized.has_value(), keeps && is_packed) << linear->name;
      }
      for (size_t i = 0; i < reference.examples.size(); ++i) {
        const PackedBatch batch = test::packed(*decoder, {reference.examples[i]});
        const at::Tensor rows = at::arange(reference.logits[i].size(0));
        EXPECT_TRUE(test::close(Stage(*decoder).logits(batch, rows), reference.logits[i], 1e-5));
      }
      losses[keeps] = loss_of(*decoder, many(reference.examples), &grads[keeps]);
    }
    EXPECT_NEAR(losses[1] / losses[0], 1, 1e-6);
    EXPECT_TRUE(test::close(grads[1], grads[0], 1e-5));
    EXPECT_GT(grads[0].abs().max().item<float>(), 0);
  }
}

/// Gradients through products that round: LibTorch's operators and autograd against our own.
TEST(QuantisedBase, Fp8TrainsAlikeInBothBackends) {
  const std::shared_ptr<const weights::Checkpoint> model =
      weights::Checkpoint::open(data("models/fp8-dynamic"));
  const auto examples = many(test::read_reference(data("models/tied-gqa")).examples);
  double losses[2];
  at::Tensor grads[2];
  int at = 0;
  for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
    DecoderOptions options;
    options.trains = Trains::kLora;
    options.backend = backend;
    options.base.keep_stored = true;
    const auto decoder = Decoder::load(model, options);
    losses[at] = loss_of(*decoder, examples, &grads[at]);
    ++at;
  }
  EXPECT_NEAR(losses[0] / losses[1], 1, 1e-5);
  // A last bit of difference may make another code of e4m3, a sixteenth away.
  EXPECT_TRUE(test::close(grads[0], grads[1], 2e-3));
  EXPECT_GT(grads[0].abs().max().item<float>(), 0);
}

/// `quant` says one format, the file has another: the matrix is quantised from its values.
TEST(QuantisedBase, AnotherFormatThanTheFilesIsMadeFromItsValues) {
  const std::shared_ptr<const weights::Checkpoint> model =
      weights::Checkpoint::open(data("models/bnb-fp4"));
  DecoderOptions options;
  options.trains = Trains::kLora;
  options.base.keep_stored = true;
  for (const QuantFormat format : {QuantFormat::kNf4, QuantFormat::kFp4}) {
    options.base.quant = QuantOptions{.format = format, .block_size = 32};
    const auto decoder = Decoder::load(model, options);
    const bool is_stored = format == QuantFormat::kFp4;
    for (const layers::Linear* linear : decoder->linears()) {
      ASSERT_TRUE(linear->quantized);
      EXPECT_EQ(linear->quantized->format, format);
      EXPECT_EQ(linear->quantized->block_size, is_stored ? 64 : 32);
    }
  }
}

/// Bytes of n values in blocks of 64.
double needed(int64_t n, bool nested) {
  const double values = static_cast<double>(n), blocks = values / 64;
  return values / 2 + (nested ? blocks + blocks / 256 * 4 : blocks * 4);
}

spec::ArchSpec small_arch(int64_t layers = 4) {
  const nlohmann::json config = {{"model_type", "llama"},       {"vocab_size", 2000},
                                 {"hidden_size", 512},          {"intermediate_size", 1536},
                                 {"num_hidden_layers", layers}, {"num_attention_heads", 8},
                                 {"num_key_value_heads", 4},    {"tie_word_embeddings", false}};
  return spec::ArchSpec::from_hf_config(config, "config.json");
}

/// By the allocator, within 2%; while it is loaded one tensor in fp32 comes on top.
TEST(QuantisedBase, MemoryIsWhatFourBitsNeed) {
  kernels::install_cpu_allocator();
  kernels::nested_map();  // made once a process
  constexpr int64_t kEmbedding = 2000 * 512, kLayer = 512 * (512 + 2 * 256 + 512 + 3 * 1536),
                    kNorms = 9 * 512;
  for (const bool nested : {true, false}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      DecoderOptions options;
      options.dtype = dtype;
      options.base.quant = QuantOptions{.nested = nested};
      const double element = dtype == at::kFloat ? 4 : 2;
      const double expected = 4 * needed(kLayer, nested) + element * (2 * kEmbedding + kNorms);
      const uint64_t before = kernels::cpu_memory_stats().allocated_bytes;
      kernels::reset_cpu_peak();
      const auto decoder = Decoder::random(small_arch(), options);
      const kernels::MemoryStats stats = kernels::cpu_memory_stats();
      EXPECT_NEAR(static_cast<double>(decoder->base_bytes()) / expected, 1, 0.001);
      EXPECT_NEAR(static_cast<double>(stats.allocated_bytes - before) / expected, 1, 0.02);
      EXPECT_LT(static_cast<double>(stats.peak_bytes - before),
                expected * 1.02 + kEmbedding * (4 + element) * 1.1);
    }
  }
}

TEST(QuantisedBase, MemoryIsWhatEightBitsNeed) {
  kernels::install_cpu_allocator();
  constexpr int64_t kEmbedding = 2000 * 512, kLayer = 512 * (512 + 2 * 256 + 512 + 3 * 1536),
                    kRows = 512 + 2 * 256 + 512 + 2 * 1536 + 512, kNorms = 9 * 512;
  for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt8}) {
    DecoderOptions options;
    options.dtype = at::kBFloat16;
    options.base.quant = QuantOptions{.format = format};
    const double expected = 4.0 * (kLayer + 4 * kRows) + 2.0 * (2 * kEmbedding + kNorms);
    const uint64_t before = kernels::cpu_memory_stats().allocated_bytes;
    const auto decoder = Decoder::random(small_arch(), options);
    EXPECT_EQ(static_cast<double>(decoder->base_bytes()), expected);
    EXPECT_NEAR(
        static_cast<double>(kernels::cpu_memory_stats().allocated_bytes - before) / expected, 1,
        0.02);
  }
}

/// Of one pass forward and back.
uint64_t peak_of_a_step(Decoder& decoder) {
  data::Example example;
  for (int32_t t = 0; t < 128; ++t) example.tokens.push_back(t % 7);
  example.labels.assign(example.tokens.begin() + 1, example.tokens.end());
  example.labels.push_back(data::kIgnoreIndex);
  example.label_tokens = 127;
  const PackedBatch batch = test::packed(decoder, {example});
  Stage(decoder).forward_backward(batch, {.grad_scale = 1.0});
  const uint64_t held = kernels::cpu_memory_stats().allocated_bytes;
  kernels::reset_cpu_peak();
  Stage(decoder).forward_backward(batch, {.grad_scale = 1.0});
  return kernels::cpu_memory_stats().peak_bytes - held;
}

/// Neither unpacked nor as a gradient does the base appear, in any format, and nothing of it is
/// left after a step.
TEST(QuantisedBase, AStepFormsNoCopyOfTheBase) {
  if (kernels::cpu_kernels().f32.matmul.blocks.multiply == nullptr)
    GTEST_SKIP() << "products unpack parts with AVX2 only";
  kernels::install_cpu_allocator();
  for (const bool checkpointing : {false, true}) {
    const at::ScalarType dtype = checkpointing ? at::kBFloat16 : at::kFloat;
    DecoderOptions options;
    options.trains = Trains::kLora;
    options.lora.r = 4;
    options.dtype = dtype;
    options.gradient_checkpointing = checkpointing;
    const auto dense = Decoder::random(small_arch(), options);
    const uint64_t of_dense = peak_of_a_step(*dense);
    for (const QuantFormat format : test::formats_with_exact_activations()) {
      SCOPED_TRACE(std::string(quant_info(format).name) + " " + c10::toString(dtype) +
                   (checkpointing ? ", checkpointed" : ""));
      options.base.quant = QuantOptions{.format = format};
      const auto quantised = Decoder::random(small_arch(), options);
      constexpr uint64_t kParts = 2 * 1024 * 1024;  // unpacked at a time, of all threads
      EXPECT_LE(peak_of_a_step(*quantised), of_dense + kParts);
      const uint64_t held = kernels::cpu_memory_stats().allocated_bytes;
      peak_of_a_step(*quantised);
      EXPECT_EQ(kernels::cpu_memory_stats().allocated_bytes, held);
    }
  }
}

/// Of a layer more, its input alone.
TEST(QuantisedBase, CheckpointedLayersSaveTheirInputs) {
  kernels::install_cpu_allocator();
  constexpr int64_t kMore = 4;
  constexpr double kInputs = kMore * 128 * 512 * sizeof(float);
  DecoderOptions options;
  options.trains = Trains::kLora;
  options.lora.r = 4;
  options.base.quant = QuantOptions{};
  double more[2];
  for (const bool checkpointing : {false, true}) {
    options.gradient_checkpointing = checkpointing;
    const auto few = Decoder::random(small_arch(4), options),
               many = Decoder::random(small_arch(4 + kMore), options);
    more[checkpointing] =
        static_cast<double>(peak_of_a_step(*many)) - static_cast<double>(peak_of_a_step(*few));
  }
  EXPECT_NEAR(more[1] / kInputs, 1, 0.05);
  EXPECT_GT(more[0], 5 * kInputs);
}

}  // namespace
}  // namespace sftrun::model
