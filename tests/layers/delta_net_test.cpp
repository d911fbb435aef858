#include "sftrun/layers/delta_net.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/tensors.h"

namespace sftrun::layers {
namespace {

using test::close;
using test::normal;

BatchContext batch_of(const std::vector<int32_t>& lengths) {
  BatchContext batch;
  batch.cu_seqlens = {0};
  for (const int32_t length : lengths) {
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.max_seqlen = std::max(batch.max_seqlen, length);
    for (int32_t i = 0; i < length; ++i) {
      batch.token_keys.push_back(
          {static_cast<uint32_t>(batch.cu_seqlens.size()), static_cast<uint32_t>(i)});
    }
  }
  batch.training = true;
  return batch;
}

struct Sizes {
  int64_t key_heads, value_heads, key_dim, value_dim, hidden = 24, kernel = 4;
  int64_t channels() const { return 2 * key_heads * key_dim + values(); }
  int64_t values() const { return value_heads * value_dim; }
};

enum class Trains { kAll, kAdapters };

/// With weights of which all train, or with adapters beside frozen ones.
struct NetUnderTest {
  ParameterStore store;
  DeltaNet net;

  NetUnderTest(const Sizes& sizes, Trains trains, at::ScalarType dtype) {
    net.num_key_heads = sizes.key_heads, net.num_value_heads = sizes.value_heads;
    net.key_dim = sizes.key_dim, net.value_dim = sizes.value_dim;
    net.norm.eps = 1e-2;  // a smaller one makes much of small answers, and of their rounding
    const std::vector<std::pair<Linear*, int64_t>> linears = {{&net.in_qkv, sizes.channels()},
                                                              {&net.in_z, sizes.values()},
                                                              {&net.in_b, sizes.value_heads},
                                                              {&net.in_a, sizes.value_heads}};
    const std::vector<int64_t> per_head = {sizes.value_heads},
                               conv = {sizes.channels(), sizes.kernel};
    const bool all = trains == Trains::kAll;
    const auto declare = [&](const char* name, const std::vector<int64_t>& shape, bool wanted) {
      return wanted ? store.add(name, shape, 0, true) : nullptr;
    };
    uint32_t module = 0;
    for (const auto& [linear, out] : linears) {
      linear->weight_parameter = declare("linear", {out, sizes.hidden}, all);
      if (!all) declare_adapter(*linear, out, sizes.hidden, ++module);
    }
    net.conv.parameter = declare("conv1d", conv, all);
    net.a_log.parameter = declare("A_log", per_head, all);
    net.dt_bias.parameter = declare("dt_bias", per_head, all);
    net.norm.parameter = declare("norm", {sizes.value_dim}, all);
    store.allocate(dtype, at::kCPU);
    const at::NoGradGuard no_grad;
    uint64_t seed = 100;
    for (Parameter& parameter : store.parameters())
      parameter.master.copy_(normal(parameter.shape, ++seed) * 0.3);
    const auto weight = [&](Parameter* parameter, const at::Tensor& values) {
      if (!parameter) return values.to(dtype);
      parameter->master.copy_(values);
      return parameter->compute;
    };
    for (const auto& [linear, out] : linears)
      linear->weight = weight(linear->weight_parameter, normal({out, sizes.hidden}, ++seed) * 0.3);
    net.conv.weight = weight(net.conv.parameter, normal(conv, ++seed) * 0.5);
    net.a_log.weight =
        weight(net.a_log.parameter, at::linspace(0.02, 2, sizes.value_heads, at::kFloat).log());
    net.dt_bias.weight = weight(net.dt_bias.parameter, normal(per_head, ++seed));
    net.norm.weight = weight(net.norm.parameter, 1 + 0.3 * normal({sizes.value_dim}, ++seed));
    store.refresh_compute();
  }

  /// Of the decay, per head.
  void set_decay(const std::vector<float>& a_log, const std::vector<float>& dt_bias) {
    const at::NoGradGuard no_grad;
    net.a_log.parameter->master.copy_(at::tensor(a_log));
    net.dt_bias.parameter->master.copy_(at::tensor(dt_bias));
    store.refresh_compute();
  }

 private:
  void declare_adapter(Linear& linear, int64_t out, int64_t in, uint32_t module) {
    LoraAdapter lora;
    lora.a = store.add("lora_A", {3, in}, 0, true);
    lora.b = store.add("lora_B", {out, 3}, 0, true);
    lora.scale = 1.5;
    lora.dropout = module == 2 ? 0.2 : 0;
    lora.module_number = module;
    linear.lora = lora;
  }
};

struct Outcome {
  at::Tensor y, dx;
  std::vector<at::Tensor> grads;  // of the parameters, in the store's order
};

std::vector<at::Tensor> grads_of(NetUnderTest& test) {
  std::vector<at::Tensor> grads;
  for (const Parameter& parameter : test.store.parameters())
    grads.push_back(parameter.grad.clone());
  test.store.zero_grad();
  return grads;
}

Outcome run_fused(NetUnderTest& test, const at::Tensor& x, const at::Tensor& dy,
                  const BatchContext& batch, bool needs_dx = true) {
  const at::NoGradGuard no_grad;
  DeltaRun run;
  Outcome outcome;
  outcome.y = delta_net_forward(test.net, x, batch, &run);
  outcome.dx = delta_net_backward(test.net, std::move(run), dy, x, batch, needs_dx);
  outcome.grads = grads_of(test);
  return outcome;
}

Outcome run_plain(NetUnderTest& test, const at::Tensor& x, const at::Tensor& dy,
                  const BatchContext& batch) {
  const at::Tensor leaf = x.detach().requires_grad_();
  Outcome outcome;
  outcome.y = plain_delta_net(test.net, leaf, batch);
  torch::autograd::backward({outcome.y}, {dy});
  outcome.dx = leaf.grad();
  outcome.grads = grads_of(test);
  return outcome;
}

void expect_close(const Outcome& actual, const Outcome& expected, NetUnderTest& test,
                  double tolerance) {
  EXPECT_TRUE(close(actual.y, expected.y, tolerance));
  EXPECT_TRUE(close(actual.dx, expected.dx, tolerance));
  size_t i = 0;
  for (const Parameter& parameter : test.store.parameters()) {
    EXPECT_TRUE(close(actual.grads[i], expected.grads[i], tolerance)) << parameter.name;
    EXPECT_GT(actual.grads[i].abs().max().item<double>(), 1e-3) << parameter.name;
    ++i;
  }
}

const std::vector<int32_t> kLengths = {1, 65, 3, 200, 63, 64, 130, 2};  // the kernel is 4

using NetCase = std::tuple<Sizes, Trains, at::ScalarType>;
class DeltaNets : public ::testing::TestWithParam<NetCase> {};

TEST_P(DeltaNets, GiveWhatTheRecurrenceGives) {
  const auto& [sizes, trains, dtype] = GetParam();
  NetUnderTest test(sizes, trains, dtype);
  const BatchContext batch = batch_of(kLengths);
  const int64_t tokens = batch.cu_seqlens.back();
  const at::Tensor x = normal({tokens, sizes.hidden}, 1, dtype),
                   dy = normal({tokens, sizes.values()}, 2, dtype);
  const Outcome fused = run_fused(test, x, dy, batch);
  expect_close(fused, run_plain(test, x, dy, batch), test, dtype == at::kFloat ? 2e-5 : 6e-2);
  // What lies before the first trained layer needs no gradient; the parameters' stay the same.
  const Outcome parameters_only = run_fused(test, x, dy, batch, /*needs_dx=*/false);
  EXPECT_FALSE(parameters_only.dx.defined());
  for (size_t i = 0; i < fused.grads.size(); ++i)
    EXPECT_TRUE(at::equal(parameters_only.grads[i], fused.grads[i]));
}
std::string name_of_case(const ::testing::TestParamInfo<NetCase>& param_info) {
  const auto& [sizes, trains, dtype] = param_info.param;
  return std::to_string(sizes.key_heads) + "_" + std::to_string(sizes.value_heads) +
         "_heads_kernel_" + std::to_string(sizes.kernel) +
         (trains == Trains::kAll ? "_full_" : "_lora_") + c10::toString(dtype);
}
constexpr Sizes kSizes[] = {{3, 3, 8, 12}, {2, 4, 12, 8}, {1, 3, 16, 16}, {2, 4, 8, 8, 20, 2}};
INSTANTIATE_TEST_SUITE_P(Shapes, DeltaNets,
                         ::testing::Combine(::testing::ValuesIn(kSizes),
                                            ::testing::Values(Trains::kAll, Trains::kAdapters),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         name_of_case);

TEST(DeltaNet, TrainsOnlyWhatIsAskedFor) {
  const Sizes sizes{1, 2, 8, 8};
  NetUnderTest test(sizes, Trains::kAll, at::kFloat);
  const BatchContext batch = batch_of({70, 9});
  const at::Tensor x = normal({79, sizes.hidden}, 1), dy = normal({79, sizes.values()}, 2);
  const std::vector<at::Tensor> all = run_fused(test, x, dy, batch).grads;
  const DeltaNet net = test.net;
  const std::vector<Parameter**> places = {
      &test.net.in_qkv.weight_parameter, &test.net.in_z.weight_parameter,
      &test.net.in_b.weight_parameter,   &test.net.in_a.weight_parameter,
      &test.net.conv.parameter,          &test.net.a_log.parameter,
      &test.net.dt_bias.parameter,       &test.net.norm.parameter};
  for (size_t wanted = 0; wanted < places.size(); ++wanted) {
    test.net = net;
    for (size_t i = 0; i < places.size(); ++i) {
      if (i != wanted) *places[i] = nullptr;
    }
    EXPECT_TRUE(test.net.trains());
    const std::vector<at::Tensor> alone = run_fused(test, x, dy, batch, /*needs_dx=*/false).grads;
    for (size_t i = 0; i < places.size(); ++i)
      EXPECT_TRUE(at::equal(alone[i], i == wanted ? all[i] : at::zeros_like(all[i]))) << i;
  }
}

// From keeping everything to forgetting everything at each token, and all of it in one net.
TEST(DeltaNet, BearsExtremeDecays) {
  const Sizes sizes{2, 6, 8, 12};
  NetUnderTest test(sizes, Trains::kAll, at::kFloat);
  const float most = std::log(16.0F);
  test.set_decay({most, most, most, -9, -30, 0}, {60, 3, -3, -9, 0, -20});
  const BatchContext batch = batch_of({200, 65});
  const at::Tensor x = normal({265, sizes.hidden}, 1), dy = normal({265, sizes.values()}, 2);
  const Outcome fused = run_fused(test, x * 3, dy, batch);
  for (const at::Tensor& grad : fused.grads) EXPECT_TRUE(grad.isfinite().all().item<bool>());
  expect_close(fused, run_plain(test, x * 3, dy, batch), test, 5e-5);
}

TEST(DeltaNet, PackedDocumentsAreAsAlone) {
  const Sizes sizes{2, 4, 12, 8};
  NetUnderTest test(sizes, Trains::kAll, at::kFloat);
  const BatchContext batch = batch_of(kLengths);
  const int64_t tokens = batch.cu_seqlens.back();
  const at::Tensor x = normal({tokens, sizes.hidden}, 1), dy = normal({tokens, sizes.values()}, 2);
  const Outcome packed = run_fused(test, x, dy, batch);
  Outcome alone;
  std::vector<at::Tensor> ys, dxs;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], length = kLengths[i];
    const Outcome one = run_fused(test, x.narrow(0, begin, length), dy.narrow(0, begin, length),
                                  batch_of({kLengths[i]}));
    ys.push_back(one.y), dxs.push_back(one.dx);
    for (size_t p = 0; p < one.grads.size(); ++p) {
      if (i == 0) alone.grads.push_back(one.grads[p]);
      if (i > 0) alone.grads[p] += one.grads[p];
    }
  }
  alone.y = at::cat(ys), alone.dx = at::cat(dxs);
  expect_close(packed, alone, test, 2e-6);
}

TEST(DeltaNet, Bf16LiesNearFp32) {
  const Sizes sizes{2, 4, 32, 16, 64};
  NetUnderTest narrow(sizes, Trains::kAll, at::kBFloat16), wide(sizes, Trains::kAll, at::kFloat);
  const BatchContext batch = batch_of({130, 40});
  const at::Tensor x = normal({170, sizes.hidden}, 1, at::kBFloat16),
                   dy = normal({170, sizes.values()}, 2, at::kBFloat16);
  const Outcome expected = run_fused(wide, x.to(at::kFloat), dy.to(at::kFloat), batch);
  expect_close(run_fused(narrow, x, dy, batch), expected, narrow, 4e-2);
}

TEST(DeltaNet, DoesNotDependOnThreads) {
  const Sizes sizes{3, 6, 16, 16};
  NetUnderTest test(sizes, Trains::kAll, at::kFloat);
  const BatchContext batch = batch_of(kLengths);
  const int64_t tokens = batch.cu_seqlens.back();
  const at::Tensor x = normal({tokens, sizes.hidden}, 1), dy = normal({tokens, sizes.values()}, 2);
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  const Outcome many = run_fused(test, x, dy, batch);
  at::set_num_threads(1);
  const Outcome one = run_fused(test, x, dy, batch);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(many.y, one.y));
  EXPECT_TRUE(at::equal(many.dx, one.dx));
  for (size_t i = 0; i < many.grads.size(); ++i)
    EXPECT_TRUE(at::equal(many.grads[i], one.grads[i])) << i;
}

// Prompts shorter than the kernel, around a chunk and longer.
TEST(DeltaNet, StepsContinueAPrompt) {
  const at::NoGradGuard no_grad;
  const Sizes sizes{2, 4, 12, 8};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    NetUnderTest test(sizes, Trains::kAdapters, dtype);
    for (const int32_t prompt : {1, 2, 63, 64, 70, 128}) {
      const int32_t length = prompt + 5;
      const at::Tensor x = normal({length, sizes.hidden}, 1, dtype);
      BatchContext whole = batch_of({length}), start = batch_of({prompt}), step = batch_of({1});
      for (BatchContext* batch : {&whole, &start, &step}) batch->training = false;
      const at::Tensor expected = delta_net_forward(test.net, x, whole, nullptr);
      DeltaState state;
      std::vector<at::Tensor> ys = {
          delta_net_forward(test.net, x.narrow(0, 0, prompt), start, nullptr, &state)};
      for (int32_t t = prompt; t < length; ++t)
        ys.push_back(delta_net_step(test.net, x.narrow(0, t, 1), step, state));
      EXPECT_TRUE(close(at::cat(ys), expected, dtype == at::kFloat ? 2e-5 : 2e-2)) << prompt;
    }
  }
}

// scripts/fixtures/make_delta_net.py. In fp32 transformers itself is up to 2e-5 off what fp64
// gives.
TEST(DeltaNet, EqualsTransformers) {
  std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/layers/delta_net.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const nlohmann::json& config = fixture["config"];
  const Sizes sizes{config["linear_num_key_heads"], config["linear_num_value_heads"],
                    config["linear_key_head_dim"],  config["linear_value_head_dim"],
                    config["hidden_size"],          config["linear_conv_kernel_dim"]};
  const int64_t tokens = config["tokens"];
  constexpr double kTolerance = 6e-5;  // fp32 here and there: sums differ with the processor
  const auto tensor = [](const nlohmann::json& values, at::IntArrayRef shape) {
    return at::tensor(values.get<std::vector<float>>()).view(shape);
  };
  NetUnderTest test(sizes, Trains::kAll, at::kFloat);
  test.net.norm.eps = config["rms_norm_eps"];
  const std::map<std::string, Parameter*> named = {
      {"in_proj_qkv.weight", test.net.in_qkv.weight_parameter},
      {"in_proj_z.weight", test.net.in_z.weight_parameter},
      {"in_proj_b.weight", test.net.in_b.weight_parameter},
      {"in_proj_a.weight", test.net.in_a.weight_parameter},
      {"conv1d.weight", test.net.conv.parameter},
      {"A_log", test.net.a_log.parameter},
      {"dt_bias", test.net.dt_bias.parameter},
      {"norm.weight", test.net.norm.parameter}};
  ASSERT_EQ(fixture["weights"].size(), named.size());
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : named)
      parameter->master.copy_(tensor(fixture["weights"][name], parameter->shape));
    const BatchContext batch = batch_of({static_cast<int32_t>(tokens)});
    const at::Tensor x = tensor(fixture["x"], {tokens, sizes.hidden}),
                     dy = tensor(fixture["dy"], {tokens, sizes.values()});
    DeltaRun run;
    EXPECT_TRUE(close(delta_net_forward(test.net, x, batch, &run), tensor(fixture["y"], dy.sizes()),
                      kTolerance));
    EXPECT_TRUE(close(delta_net_backward(test.net, std::move(run), dy, x, batch, true),
                      tensor(fixture["dx"], x.sizes()), kTolerance));
  }
  for (const auto& [name, parameter] : named)
    EXPECT_TRUE(
        close(parameter->grad, tensor(fixture["grads"][name], parameter->shape), kTolerance))
        << name;
}

}  // namespace
}  // namespace sftrun::layers
