#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "sftrun/kernels/noise.h"
#include "sftrun/layers/dora.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/generate.h"
#include "sftrun/model/pissa.h"
#include "sftrun/model/stage.h"
#include "support/expect_error.h"
#include "support/reference.h"
#include "support/tensors.h"

namespace sftrun::model {
namespace {

using test::normal;

std::shared_ptr<const weights::Checkpoint> tied_model() {
  return weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa");
}

DecoderOptions lora_options() {
  DecoderOptions options;
  options.trains = Trains::kLora;
  options.lora.r = 3;
  return options;
}

at::Tensor weight_of(const layers::Linear& linear) {
  return linear.matrix().values(at::kFloat).to(at::kFloat);
}

// ---- PiSSA

TEST(Pissa, IsTheBestOfItsRank) {
  for (const auto& [out, in, r] : {std::tuple{7, 19, 3}, {19, 7, 7}, {13, 13, 1}, {1, 5, 1}}) {
    SCOPED_TRACE(fmt::format("{} x {}, rank {}", out, in, r));
    const at::Tensor w = normal({out, in}, 3);
    const auto [u, s, vh] = at::linalg_svd(w.to(at::kDouble), /*full_matrices=*/false);
    const at::Tensor best =
        at::mm(u.narrow(1, 0, r) * s.narrow(0, 0, r), vh.narrow(0, 0, r)).to(at::kFloat);
    const PrincipalPart part = principal_part(w, r, 1.7);
    EXPECT_LT((1.7 * at::mm(part.b, part.a) - best).abs().max().item<float>(), 2e-6);
    EXPECT_LT((part.a.square().sum(1) - part.b.square().sum(0)).abs().max().item<float>(), 1e-5);
    EXPECT_LT((part.a.square().sum(1) - (s.narrow(0, 0, r) / 1.7)).abs().max().item<double>(),
              1e-5);
    for (int64_t i = 0; i < r; ++i)
      EXPECT_GT(part.a[i][part.a[i].abs().argmax().item<int64_t>()].item<float>(), 0);
  }
}

TEST(Pissa, OfAMatrixOfLowerRank) {
  const at::Tensor w = at::mm(normal({9, 2}, 1), normal({2, 11}, 2));
  const PrincipalPart part = principal_part(w, 4, 1);
  EXPECT_TRUE(part.a.isfinite().all().item<bool>() && part.b.isfinite().all().item<bool>());
  EXPECT_LT((at::mm(part.b, part.a) - w).abs().max().item<float>(), 1e-5);
}

TEST(Pissa, TheModelStaysWhatItWas) {
  const at::NoGradGuard no_grad;
  for (const bool quantised : {false, true}) {
    SCOPED_TRACE(quantised);
    DecoderOptions options = lora_options();
    const auto plain = Decoder::load(tied_model(), options);
    options.lora.pissa = true;
    if (quantised) options.base.quant = QuantOptions{};
    const auto decoder = Decoder::load(tied_model(), options);
    const auto before = plain->linears(), after = decoder->linears();
    EXPECT_EQ(decoder->principal_parts().size(), 2 * after.size());
    for (size_t i = 0; i < after.size(); ++i) {
      const layers::LoraAdapter& lora = *after[i]->lora;
      const at::Tensor whole =
          weight_of(*after[i]) + lora.scale * at::mm(lora.b->master, lora.a->master);
      const at::Tensor& w = before[i]->weight;
      EXPECT_LT((whole - w).abs().max().item<float>(),
                (quantised ? 0.16 : 1e-6) * w.abs().max().item<float>())
          << after[i]->name;
      EXPECT_LT(weight_of(*after[i]).norm().item<float>(), 0.98 * w.norm().item<float>());
    }
  }
}

TEST(Pissa, RanksBeyondAMatrix) {
  DecoderOptions options = lora_options();
  options.lora.pissa = true;
  options.lora.rank_pattern = {{"k_proj", 1000}};
  test::expect_error<ConfigError>(
      [&] { Decoder::load(tied_model(), options); },
      {"k_proj.weight has fewer than 1000 singular values", "rank_pattern"});
}

// ---- DoRA

TEST(Dora, LengthsAreThoseOfTheSum) {
  const at::NoGradGuard no_grad;
  for (const bool quantised : {false, true}) {
    SCOPED_TRACE(quantised);
    DecoderOptions options = lora_options();
    options.lora.dora = true;
    options.lora.alpha = 5;
    if (quantised) options.base.quant = QuantOptions{.block_size = 32};
    const auto decoder = Decoder::load(tied_model(), options);
    uint64_t seed = 1;
    for (layers::Linear* linear : decoder->linears()) {
      layers::LoraAdapter& lora = *linear->lora;
      const at::Tensor w = weight_of(*linear);
      const auto lengths = [](const at::Tensor& matrix) { return matrix.square().sum(1).sqrt(); };
      EXPECT_LT((lora.magnitude->master - lengths(w)).abs().max().item<float>(), 1e-5);
      lora.b->master.copy_(normal(lora.b->shape, seed++));
      decoder->parameters().refresh_compute();
      const at::Tensor sum = w + lora.scale * at::mm(lora.b->master, lora.a->master);
      EXPECT_LT((layers::row_lengths(*linear) / lengths(sum) - 1).abs().max().item<float>(), 2e-6)
          << linear->name;
    }
  }
}

/// Those that are settled are not computed again.
TEST(Dora, SettledLengthsStay) {
  const at::NoGradGuard no_grad;
  DecoderOptions options = lora_options();
  options.lora.dora = true;
  const auto decoder = Decoder::load(tied_model(), options);
  layers::Linear& linear = *decoder->linears()[0];
  decoder->freeze_adapters();
  const at::Tensor settled = layers::row_lengths(linear).clone();
  linear.lora->b->master.fill_(1);
  EXPECT_TRUE(at::equal(layers::row_lengths(linear), settled));
}

// ---- Whole modules

TEST(WholeModules, PartATie) {
  for (const auto& [saved, head, embedding] :
       {std::tuple{"lm_head", true, false}, {"embed_tokens", false, true}}) {
    SCOPED_TRACE(saved);
    DecoderOptions options = lora_options();
    options.lora.modules_to_save = {saved};
    const auto decoder = Decoder::load(tied_model(), options);
    EXPECT_EQ(decoder->head().linear.weight_parameter != nullptr, head);
    const at::Tensor tokens = at::arange(5);
    const at::Tensor rows = decoder->embed(tokens);
    EXPECT_TRUE(at::equal(decoder->head().linear.weight.narrow(0, 0, 5), rows));
    EXPECT_NE(decoder->head().linear.weight.data_ptr(),
              Decoder::load(tied_model(), lora_options())->head().linear.weight.data_ptr());
    EXPECT_EQ(decoder->parameters().find("base_model.model.model.embed_tokens.weight") != nullptr,
              embedding);
    EXPECT_EQ(decoder->parameters().find("base_model.model.lm_head.weight") != nullptr, head);
  }
}

TEST(WholeModules, AreNotAdapted) {
  DecoderOptions options = lora_options();
  options.lora.modules_to_save = {"layers.1.mlp", "v_proj"};
  const auto decoder = Decoder::load(tied_model(), options);
  for (const layers::Linear* linear : decoder->linears()) {
    const bool is_whole =
        linear->name.find("layers.1.mlp") != std::string::npos || linear->name.ends_with("v_proj");
    EXPECT_EQ(linear->lora.has_value(), !is_whole) << linear->name;
    EXPECT_EQ(linear->weight_parameter != nullptr, is_whole) << linear->name;
  }
}

TEST(WholeModules, MustExist) {
  DecoderOptions options = lora_options();
  options.lora.modules_to_save = {"lm_haed"};
  test::expect_error<ConfigError>(
      [&] { Decoder::load(tied_model(), options); },
      {"no module's name ends in `lm_haed`", "modules_to_save", "did you mean `lm_head`?"});
}

// ---- Embedding and head

constexpr const char* kEmbeddingA = "base_model.model.model.embed_tokens.lora_embedding_A";

DecoderOptions with_ends(const layers::Backend& backend = layers::fused_backend()) {
  DecoderOptions options = lora_options();
  options.backend = &backend;
  options.lora.target_modules = {"all-linear", "embed_tokens", "lm_head"};
  return options;
}

TEST(Ends, StartAsTheBaseIsAndStayTied) {
  const at::NoGradGuard no_grad;
  const auto decoder = Decoder::load(tied_model(), with_ends());
  const layers::Embedding& embedding = decoder->embedding();
  const layers::LoraAdapter& of_head = *decoder->head().linear.lora;
  EXPECT_EQ(embedding.lora->a->name, kEmbeddingA);
  EXPECT_EQ(embedding.lora->a->unit, 0);
  EXPECT_EQ(of_head.b->unit, decoder->arch().num_layers + 1);
  EXPECT_EQ(embedding.lora->a->master.abs().max().item<float>(), 0);
  EXPECT_NEAR(embedding.lora->b->master.std().item<double>(), 1, 0.25);
  EXPECT_EQ(of_head.b->master.abs().max().item<float>(), 0);
  EXPECT_GT(of_head.a->master.abs().max().item<float>(), 0);
  EXPECT_EQ(decoder->head().linear.weight.data_ptr(), embedding.weight.data_ptr());
  const auto without = Decoder::load(tied_model(), lora_options());
  EXPECT_FALSE(without->embedding().lora || without->head().linear.lora);
  EXPECT_TRUE(at::equal(decoder->embed(at::arange(5)), without->embed(at::arange(5))));
}

/// What training the tables themselves gives, projected.
TEST(Ends, GradientsAreThoseOfTheTables) {
  const at::NoGradGuard no_grad;
  const std::filesystem::path path =
      std::filesystem::path(SFTRUN_TEST_DATA) / "models" / "linear-bias-sharded";
  const std::shared_ptr<const weights::Checkpoint> model = weights::Checkpoint::open(path);
  ASSERT_FALSE(model->arch().tie_word_embeddings);
  const auto examples = test::read_reference(path).examples;
  const auto backward = [&](Decoder& decoder) {
    return Stage(decoder)
        .forward_backward(test::packed(decoder, examples), {.grad_scale = 0.1})
        .item<double>();
  };
  DecoderOptions options;
  options.trains = Trains::kPartial;
  options.trainable = {"embed_tokens", "lm_head"};
  const auto whole = Decoder::load(model, options);
  const double loss = backward(*whole);
  const auto grad = [&](const char* name) { return whole->parameters().find(name)->grad; };
  for (const layers::Backend* backend : {&layers::fused_backend(), &layers::plain_backend()}) {
    SCOPED_TRACE(backend->name);
    const auto decoder = Decoder::load(model, with_ends(*backend));
    EXPECT_NEAR(backward(*decoder) / loss, 1, 1e-6);
    const layers::LoraAdapter &of_embedding = *decoder->embedding().lora,
                              &of_head = *decoder->head().linear.lora;
    EXPECT_TRUE(test::close(
        of_embedding.a->grad,
        of_embedding.scale * at::mm(grad("model.embed_tokens.weight"), of_embedding.b->master).t(),
        2e-5));
    EXPECT_TRUE(test::close(of_head.b->grad,
                            of_head.scale * at::mm(grad("lm_head.weight"), of_head.a->master.t()),
                            2e-5));
  }
}

/// Tied, over four bits, with dropout and magnitudes: both backends, and layers that run again.
TEST(Ends, BackendsAgree) {
  const at::NoGradGuard no_grad;
  const auto examples =
      test::read_reference(std::filesystem::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa")
          .examples;
  for (const auto& [quantised, dora] :
       {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    SCOPED_TRACE(fmt::format("{} {}", quantised ? "nf4" : "dense", dora ? "DoRA" : "LoRA"));
    std::vector<at::Tensor> grads;
    std::vector<double> losses;
    for (const auto& [backend, again] : {std::pair{&layers::fused_backend(), false},
                                         {&layers::fused_backend(), true},
                                         {&layers::plain_backend(), false}}) {
      DecoderOptions options = with_ends(*backend);
      options.gradient_checkpointing = again;
      options.lora.dora = dora;
      options.lora.dropout = 0.2;
      if (quantised) options.base.quant = QuantOptions{.block_size = 32};
      options.base.embeddings = quantised;
      const auto decoder = Decoder::load(tied_model(), options);
      EXPECT_EQ(decoder->embedding().quantized.has_value(), quantised);
      uint64_t seed = 40;
      for (layers::Parameter& parameter : decoder->parameters().parameters()) {
        if (parameter.shape.size() > 1)
          parameter.master.copy_(normal(parameter.shape, ++seed) * 0.1);
      }
      decoder->parameters().refresh_compute();
      std::vector<data::Bin> bins;
      for (size_t i = 0; i < examples.size(); ++i) bins.push_back({static_cast<int64_t>(i)});
      const data::Batch batch = data::make_batch(data::ExampleStore::in_memory(examples), bins, 0,
                                                 static_cast<int64_t>(bins.size()));
      const PackedBatch packed =
          prepare_batch(batch, decoder->rope(), decoder->batch_target(), {7, 3, true});
      losses.push_back(
          Stage(*decoder).forward_backward(packed, {.grad_scale = 0.1}).item<double>());
      grads.push_back(decoder->parameters().grad().clone());
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_TRUE(at::equal(grads[0], grads[1]));
    EXPECT_NEAR(losses[0] / losses[2], 1, 1e-6);
    EXPECT_TRUE(test::close(grads[0], grads[2], 5e-5));
  }
}

/// What generation picks is what the whole forward pass picks.
TEST(Ends, AreGeneratedWith) {
  const at::NoGradGuard no_grad;
  for (const bool dora : {false, true}) {
    DecoderOptions options = with_ends();
    options.lora.dora = dora;
    const auto decoder = Decoder::load(tied_model(), options);
    for (layers::Parameter& parameter : decoder->parameters().parameters())
      if (parameter.shape.size() > 1) parameter.master.copy_(normal(parameter.shape, 3) * 0.2);
    decoder->parameters().refresh_compute();
    decoder->freeze_adapters();
    SamplingOptions sampling;
    sampling.max_new_tokens = 8;
    data::Example so_far;
    so_far.tokens = {3, 1, 4, 1, 5};
    const auto generated = generate(*decoder, {so_far.tokens}, {0}, sampling);
    for (const int32_t token : generated[0].tokens) {
      so_far.labels.assign(so_far.tokens.size(), data::kIgnoreIndex);
      const PackedBatch batch = test::packed(*decoder, {so_far});
      const at::Tensor last = at::full({1}, batch.num_tokens() - 1, at::kLong);
      const at::Tensor logits = Stage(*decoder).logits(batch, last)[0];
      EXPECT_GE(logits[token].item<double>(), logits.max().item<double>() - 1e-4);
      so_far.tokens.push_back(token);
    }
  }
}

TEST(Ends, PissaDoesNotTakeThem) {
  DecoderOptions options = with_ends();
  options.lora.pissa = true;
  test::expect_error<ConfigError>([&] { Decoder::load(tied_model(), options); },
                                  {"PiSSA does not support model.embed_tokens"});
}

// ---- NEFTune

layers::BatchContext two_documents(uint32_t first_key, int32_t first, int32_t second) {
  layers::BatchContext batch;
  batch.cu_seqlens = {0, first, first + second};
  batch.dropout_seed = 7;
  batch.step = 3;
  for (int32_t i = 0; i < first; ++i)
    batch.token_keys.push_back({first_key, static_cast<uint32_t>(i)});
  for (int32_t i = 0; i < second; ++i)
    batch.token_keys.push_back({first_key + 1, static_cast<uint32_t>(i)});
  return batch;
}

TEST(EmbeddingNoise, IsUniformWithinItsDocumentsBound) {
  constexpr int64_t kChannels = 37;
  at::Tensor x = at::zeros({5 + 11, kChannels});
  kernels::add_embedding_noise_(x, two_documents(0, 5, 11), 4, 2);
  const at::Tensor first = x.narrow(0, 0, 5), second = x.narrow(0, 5, 11);
  const double bound = 2 * 4 / std::sqrt(5.0 * kChannels),
               other = 2 * 4 / std::sqrt(11.0 * kChannels);
  EXPECT_LE(first.abs().max().item<double>(), bound);
  EXPECT_GT(first.abs().max().item<double>(), 0.95 * bound);
  EXPECT_LE(second.abs().max().item<double>(), other);
  EXPECT_GT(second.abs().max().item<double>(), 0.95 * other);
  EXPECT_LT(std::abs(second.mean().item<double>()), 0.1 * other);
}

/// A document gets the same wherever it lies, and another in another step.
TEST(EmbeddingNoise, IsTheDocuments) {
  at::Tensor together = at::zeros({9, 6}), alone = at::zeros({4, 6}), later = at::zeros({4, 6});
  kernels::add_embedding_noise_(together, two_documents(8, 5, 4), 1);
  layers::BatchContext batch = two_documents(9, 4, 0);
  kernels::add_embedding_noise_(alone, batch, 1);
  EXPECT_TRUE(at::equal(together.narrow(0, 5, 4), alone));
  batch.step = 4;
  kernels::add_embedding_noise_(later, batch, 1);
  EXPECT_FALSE(at::equal(later, alone));
}

}  // namespace
}  // namespace sftrun::model
