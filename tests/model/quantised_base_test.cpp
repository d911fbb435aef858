#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "sftrun/model/decoder.h"
#include "support/reference.h"

namespace sftrun::model {
namespace {

std::shared_ptr<const weights::Checkpoint> checkpoint() {
  return weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa");
}

TEST(QuantisedBase, IsWhatTheCheckpointHoldsInFourBits) {
  const auto model = checkpoint();
  DecoderOptions options;
  options.trains = Trains::kLora;
  options.quant = kernels::QuantOptions{};
  const auto decoder = Decoder::load(model, options);
  options.quant.reset();
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

/// B of a fresh adapter is zero, and would hide A's gradient.
void fill_adapters(Decoder& decoder) {
  const at::NoGradGuard no_grad;
  for (const kernels::Parameter& parameter : decoder.parameters().parameters()) {
    at::Tensor master = parameter.master;
    master.fill_(0.01);
  }
  decoder.parameters().refresh_compute();
}

/// The same losses as a dense model of the same values.
TEST(QuantisedBase, ComputesWithTheRoundedValues) {
  const auto model = checkpoint();
  for (const kernels::Backend* backend : {&kernels::fused_backend(), &kernels::plain_backend()}) {
    DecoderOptions options;
    options.trains = Trains::kLora;
    options.backend = backend;
    const auto dense = Decoder::load(model, options);
    options.quant = kernels::QuantOptions{.block_size = 32};
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
      const PackedBatch batch = test::packed(*one, reference.examples);
      losses[at] = one->forward_backward(batch, 1.0, [](int64_t) {});
      grads[at++] = one->parameters().grad().clone();
    }
    EXPECT_EQ(losses[0], losses[1]) << backend->name;
    EXPECT_TRUE(at::equal(grads[0], grads[1])) << backend->name;
    EXPECT_GT(grads[0].abs().max().item<float>(), 0);
  }
}

}  // namespace
}  // namespace sftrun::model
