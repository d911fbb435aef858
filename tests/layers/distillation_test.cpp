#include "sftrun/layers/distillation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/layers/backend.h"
#include "sftrun/layers/tensor_ranks.h"
#include "support/rank_threads.h"
#include "support/tensors.h"

// The losses of distillation, with the gradients that the head writes out.
namespace sftrun::layers {
namespace {

using test::close;
using test::normal;
using Json = nlohmann::json;

/// scripts/fixtures/make_distillation.py
const Json& fixture() {
  static const Json json = [] {
    std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/layers/distillation.json");
    return Json::parse(file);
  }();
  return json;
}

at::Tensor fixture_floats(const Json& values, at::IntArrayRef shape) {
  return at::tensor(values.get<std::vector<double>>(), at::kDouble).to(at::kFloat).view(shape);
}

Head head_of_case(const Json& one) {
  const int64_t width = fixture()["width"];
  Head head;
  head.linear.weight = fixture_floats(fixture()["weight"], {fixture()["vocab"], width});
  head.norm.weight = at::ones({width});
  head.norm.eps = fixture()["eps"];
  head.softcap = one["softcap"];
  head.logit_scale = one["logit_scale"];
  head.vocab_size = fixture()["vocab"];
  return head;
}

TeacherTargets targets_of(const Json& one) {
  const int64_t rows = fixture()["rows"], k = one["k"];
  return {at::tensor(one["tokens"].get<std::vector<int32_t>>(), at::kInt).view({rows, k}),
          fixture_floats(one["log_probs"], {rows, k + 1}),
          {.alpha = fixture()["alpha"], .beta = one["beta"], .temperature = one["temperature"]}};
}

std::string name_of_case(const Json& one) {
  return "beta " + one["beta"].dump() + ", temperature " + one["temperature"].dump() + ", k " +
         one["k"].dump() + ", softcap " + one["softcap"].dump();
}

at::Tensor labels_of_fixture() {
  return at::tensor(fixture()["labels"].get<std::vector<int32_t>>(), at::kInt);
}
at::Tensor hidden_of_fixture() {
  return fixture_floats(fixture()["hidden"], {fixture()["rows"], fixture()["width"]});
}

void expect_sums(const HeadLoss& made, const Json& one) {
  const double alpha = fixture()["alpha"], divergence = one["divergence"],
               cross_entropy = one["cross_entropy"];
  EXPECT_NEAR(made.divergence_sum.item<double>(), divergence, 2e-6 * (1 + divergence));
  EXPECT_NEAR(made.cross_entropy_sum.item<double>(), cross_entropy, 2e-6 * (1 + cross_entropy));
  EXPECT_NEAR(made.loss_sum.item<double>(), alpha * divergence + (1 - alpha) * cross_entropy,
              2e-6 * (1 + divergence + cross_entropy));
}

TEST(Distillation, EqualsTheFormulas) {
  const at::Tensor hidden = hidden_of_fixture(), labels = labels_of_fixture();
  ASSERT_GE(fixture()["cases"].size(), 25U);
  for (const Json& one : fixture()["cases"]) {
    const Head head = head_of_case(one);
    const TeacherTargets targets = targets_of(one);
    const at::Tensor grad = fixture_floats(one["grad"], hidden.sizes());
    for (const Backend* backend : {&fused_backend(), &plain_backend()}) {
      SCOPED_TRACE(std::string(backend->name) + ": " + name_of_case(one));
      const HeadLoss made =
          backend->distillation_loss(hidden, head, labels, targets, 1, HeadGrad::kInput, {});
      expect_sums(made, one);
      EXPECT_TRUE(close(made.grad_input, grad, 5e-6));
      expect_sums(backend->distillation_loss(hidden, head, labels, targets, 1, HeadGrad::kNone, {}),
                  one);
    }
  }
}

/// Two ranks as threads, each with some of the vocabulary.
class PairedRanks final : public TensorRanks {
 public:
  struct Shared {
    std::barrier<> meeting{2};
    std::array<at::Tensor, 2> values;
  };
  PairedRanks(Shared& shared, int64_t rank) : shared_(shared), rank_(rank) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return 2; }
  void sum(const at::Tensor& values) const override { values.copy_(gather(values).sum(0)); }
  at::Tensor gather(const at::Tensor& values) const override {
    shared_.values[static_cast<size_t>(rank_)] = values.clone();
    shared_.meeting.arrive_and_wait();
    const at::Tensor all = at::stack({shared_.values[0], shared_.values[1]});
    shared_.meeting.arrive_and_wait();
    return all;
  }

 private:
  Shared& shared_;
  int64_t rank_;
};

/// What a rank computed of its columns: gradients of the input add up to that of all.
TEST(Distillation, MayDivideTheVocabulary) {
  const at::Tensor hidden = hidden_of_fixture(), labels = labels_of_fixture();
  const int64_t first_part = 9, vocab = fixture()["vocab"];
  for (const Json& one : fixture()["cases"]) {
    SCOPED_TRACE(name_of_case(one));
    PairedRanks::Shared shared;
    std::array<at::Tensor, 2> grads;
    const auto run = [&](int64_t rank) {
      const PairedRanks ranks(shared, rank);
      Head head = head_of_case(one);
      head.first_token = rank * first_part;
      const int64_t own = rank == 0 ? first_part : vocab - first_part;
      head.linear.weight = head.linear.weight.narrow(0, head.first_token, own).contiguous();
      head.linear.ranks = &ranks;
      const HeadLoss made = fused_backend().distillation_loss(hidden, head, labels, targets_of(one),
                                                              1, HeadGrad::kInput, {});
      expect_sums(made, one);
      grads[static_cast<size_t>(rank)] = made.grad_input;
    };
    {
      test::TestThreads threads;
      threads.start([&] { run(0); });
      threads.start([&] { run(1); });
    }
    // The rank's products may be summed over the ranks already, in the backward pass of the linear.
    const at::Tensor expected = fixture_floats(one["grad"], hidden.sizes());
    const at::Tensor sum = close(grads[0], expected, 5e-6) ? grads[0] : grads[0] + grads[1];
    EXPECT_TRUE(close(sum, expected, 5e-6));
  }
}

struct RandomRows {
  Head head;
  at::Tensor hidden, labels;
  TeacherTargets targets;

  RandomRows(int64_t rows, int64_t vocab, int64_t k, at::ScalarType dtype, Distillation mix) {
    constexpr int64_t kWidth = 32;
    head.vocab_size = vocab;
    head.softcap = 6;
    head.linear.weight = normal({vocab, kWidth}, 80).to(dtype);
    head.norm.weight = normal({kWidth}, 82).to(dtype);
    hidden = normal({rows, kWidth}, 81).to(dtype);
    labels = (at::arange(rows, at::kInt) * 7).remainder(vocab).to(at::kInt);
    Head teacher = head;
    teacher.softcap = 0;
    teacher.linear.weight = normal({vocab, kWidth}, 90).to(dtype);
    targets = top_tokens(teacher, hidden, k, vocab, mix.temperature);
    targets.mix = mix;
  }
  HeadLoss of(const Backend& backend, const kernels::GradScale& scale) const {
    return backend.distillation_loss(hidden, head, labels, targets, scale, HeadGrad::kInput, {});
  }
};

// temperature, dtype
using DistillationCase = std::pair<double, at::ScalarType>;
class DistillationBackends : public ::testing::TestWithParam<DistillationCase> {};

/// Several chunks of rows, factors of rows, and rows of padding.
TEST_P(DistillationBackends, GiveTheSame) {
  const auto [temperature, dtype] = GetParam();
  const RandomRows rows(300, 70'000, 16, dtype,
                        {.alpha = 0.4, .beta = 0.3, .temperature = temperature});
  rows.labels.narrow(0, 250, 20).fill_(-100);
  const kernels::GradScale scale(0.01, {}, normal({300}, 83));
  const HeadLoss fused = rows.of(fused_backend(), scale), plain = rows.of(plain_backend(), scale);
  const double tolerance = dtype == at::kFloat ? 2e-5 : 3e-2;
  for (const auto sum :
       {&HeadLoss::loss_sum, &HeadLoss::divergence_sum, &HeadLoss::cross_entropy_sum}) {
    EXPECT_TRUE((fused.*sum).isfinite().item<bool>());
    EXPECT_TRUE(close(fused.*sum, plain.*sum, tolerance));
  }
  EXPECT_TRUE(close(fused.grad_input, plain.grad_input, tolerance));
  EXPECT_EQ(fused.grad_input.narrow(0, 250, 20).abs().max().item<double>(), 0);
}
INSTANTIATE_TEST_SUITE_P(Kinds, DistillationBackends,
                         ::testing::Values(DistillationCase{1, at::kFloat},
                                           DistillationCase{2, at::kFloat},
                                           DistillationCase{1, at::kBFloat16},
                                           DistillationCase{2, at::kBFloat16}));

/// Without a share of the divergence the loss is that of supervised fine-tuning.
TEST(Distillation, WithoutDivergenceIsTheCrossEntropy) {
  for (const double temperature : {1.0, 3.0}) {
    const RandomRows rows(40, 301, 8, at::kFloat, {.alpha = 0, .temperature = temperature});
    const HeadLoss made = rows.of(fused_backend(), 1),
                   sft = fused_backend().head_loss(rows.hidden, rows.head, rows.labels, 1,
                                                   HeadGrad::kInput, {});
    EXPECT_TRUE(close(made.loss_sum, sft.loss_sum, 1e-6));
    EXPECT_TRUE(close(made.grad_input, sft.grad_input, 1e-5));
  }
}

/// A student that is its teacher has nothing to learn from the divergence.
TEST(Distillation, IsZeroForTheTeacherItself) {
  for (const double beta : {0.0, 0.5, 1.0}) {
    RandomRows rows(40, 301, 8, at::kFloat, {.alpha = 1, .beta = beta});
    rows.targets = top_tokens(rows.head, rows.hidden, 8, 301, 1);
    rows.targets.mix = {.alpha = 1, .beta = beta};
    const HeadLoss made = rows.of(fused_backend(), 1);
    EXPECT_NEAR(made.divergence_sum.item<double>(), 0, 1e-5);
    EXPECT_LT(made.grad_input.abs().max().item<double>(), 1e-5);
  }
}

/// A teacher may be sure: the probability of all other tokens is 0.
TEST(Distillation, TakesTeachersThatAreSure) {
  RandomRows rows(4, 301, 2, at::kFloat, {.alpha = 1});
  rows.targets.log_probs = at::full({4, 3}, -INFINITY);
  rows.targets.log_probs.select(1, 0).zero_();
  for (const double beta : {0.0, 0.4, 1.0}) {
    rows.targets.mix.beta = beta;
    for (const Backend* backend : {&fused_backend(), &plain_backend()}) {
      const HeadLoss made = rows.of(*backend, 1);
      EXPECT_TRUE(made.grad_input.isfinite().all().item<bool>()) << beta;
      EXPECT_TRUE(made.loss_sum.isfinite().item<bool>()) << beta;
    }
  }
  rows.targets.mix.beta = 0;
  const at::Tensor expected = -at::log_softmax(logits_of(rows.head, rows.hidden), 1)
                                   .gather(1, rows.targets.tokens.to(at::kLong))
                                   .select(1, 0);
  EXPECT_TRUE(close(rows.of(fused_backend(), 1).divergence_sum, expected.sum(), 1e-5));
}

TEST(TopTokens, AreTheLikeliestAndTheRest) {
  const RandomRows rows(70, 301, 5, at::kFloat, {});
  constexpr int64_t kTokens = 290;
  for (const double temperature : {1.0, 0.5}) {
    const TeacherTargets top = top_tokens(rows.head, rows.hidden, 5, kTokens, temperature);
    const at::Tensor probs =
        at::softmax(logits_of(rows.head, rows.hidden).to(at::kDouble) / temperature, 1);
    const auto [values, tokens] = probs.narrow(1, 0, kTokens).topk(5, 1);
    EXPECT_TRUE(at::equal(top.tokens, tokens.to(at::kInt)));
    EXPECT_TRUE(close(top.log_probs.narrow(1, 0, 5), values.log(), 1e-6));
    EXPECT_TRUE(close(top.log_probs.select(1, 5).exp(), 1 - values.sum(1), 1e-5));
  }
  const TeacherTargets all = top_tokens(rows.head, rows.hidden, 301, 301, 1);
  EXPECT_TRUE(all.log_probs.select(1, 301).isneginf().all().item<bool>());
  EXPECT_EQ(top_tokens(rows.head, rows.hidden.narrow(0, 0, 0), 5, 301, 1).tokens.size(0), 0);
}

}  // namespace
}  // namespace sftrun::layers
