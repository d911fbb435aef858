#include "sftrun/model/stage.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <string>

#include "support/expect_error.h"
#include "support/reference.h"
#include "support/tensors.h"

namespace sftrun::model {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Decoder> load(const fs::path& model, DecoderOptions options) {
  return Decoder::load(weights::Checkpoint::open(fs::path(SFTRUN_TEST_DATA) / model), options);
}

std::vector<data::Example> examples() {
  return test::read_reference(fs::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa").examples;
}

/// Writes down what the hooks are told: "f0 f1 …", "b2", "r2".
struct Recorder final : layers::UnitHooks {
  std::string text;
  void write(char what, int64_t unit) { text += std::string(1, what) + std::to_string(unit) + " "; }
  void before(int64_t unit, layers::UnitPass pass) override {
    write(pass == layers::UnitPass::kForward ? 'f' : 'b', unit);
  }
  void after(int64_t unit, layers::UnitPass) override { write('/', unit); }
  void gradients_ready(int64_t unit) override { write('r', unit); }
};

// Units in order forward, then backward; the tied head reads the embedding. An empty micro-batch
// makes the same calls.
TEST(Stage, TellsTheHooksWhatItUses) {
  for (const Trains trains : {Trains::kFull, Trains::kLora}) {
    DecoderOptions options;
    options.trains = trains;
    const auto decoder = load("models/tied-gqa", options);
    ASSERT_EQ(decoder->arch().num_layers, 2);
    const std::string expected =
        trains == Trains::kFull ? "f0 /0 f1 /1 f2 /2 b0 b3 /3 /0 r3 b2 /2 r2 b1 /1 r1 b0 /0 r0 "
                                : "f0 /0 f1 /1 f2 /2 b0 b3 /3 /0 r3 b2 /2 r2 b1 /1 r1 r0 ";
    for (const bool is_empty : {false, true}) {
      Recorder hooks;
      const PackedBatch batch = is_empty ? PackedBatch{} : test::packed(*decoder, examples());
      Stage(*decoder, &hooks).forward_backward(batch, {});
      EXPECT_EQ(hooks.text, expected) << is_empty;
      hooks.text.clear();
      Stage(*decoder, &hooks).forward_backward(batch, {.completes_gradients = false});
      EXPECT_EQ(hooks.text.find('r'), std::string::npos);
      hooks.text.clear();
      Stage(*decoder, &hooks).loss(batch);
      EXPECT_EQ(hooks.text, "f0 /0 f1 /1 f2 /2 f0 f3 /3 /0 ");
    }
  }
}

struct Outcome {
  double loss = 0;
  at::Tensor grad;
};

// What passes between two stages are the hidden states and their gradient, and nothing else. Two
// micro-batches are under way at a time.
Outcome in_two_stages(Decoder& decoder, const std::vector<PackedBatch>& batches, int64_t cut) {
  const Stage first(decoder, nullptr, 0, cut),
      second(decoder, nullptr, cut, static_cast<int64_t>(decoder.units().size()));
  std::deque<MicroBatchRun> of_first, of_second;
  Outcome outcome;
  for (const PackedBatch& batch : batches) {
    first.forward(of_first.emplace_back(batch, PassOptions{.grad_scale = 0.1}));
    MicroBatchRun& run = of_second.emplace_back(batch, PassOptions{.grad_scale = 0.1});
    run.hidden = of_first.back().hidden.clone();
    second.forward(run);
    outcome.loss += second.loss(run).item<double>();
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    second.backward(of_second[i]);
    of_first[i].grad = of_second[i].grad.clone();
    first.backward(of_first[i]);
  }
  outcome.grad = decoder.parameters().grad().clone();
  return outcome;
}

TEST(Stage, TwoStagesAreOneModel) {
  for (const bool checkpoints : {false, true}) {
    DecoderOptions options;
    options.trains = Trains::kFull;
    options.gradient_checkpointing = checkpoints;
    for (const size_t num_batches : {1, 2}) {
      const auto one = load("models/tied-gqa", options);
      std::vector<PackedBatch> batches = {test::packed(*one, examples())};
      if (num_batches == 2) batches.push_back(test::packed(*one, {examples()[0]}));
      Outcome expected;
      for (const PackedBatch& batch : batches)
        expected.loss += Stage(*one).forward_backward(batch, {.grad_scale = 0.1}).item<double>();
      expected.grad = one->parameters().grad().clone();
      for (const int64_t cut : {1, 2, 3}) {
        const auto two = load("models/tied-gqa", options);
        const Outcome outcome = in_two_stages(*two, batches, cut);
        EXPECT_EQ(outcome.loss, expected.loss);
        // The gradients of two micro-batches are added in another order.
        EXPECT_TRUE(num_batches == 1 ? at::equal(outcome.grad, expected.grad)
                                     : test::close(outcome.grad, expected.grad, 1e-6))
            << cut;
      }
    }
  }
}

TEST(Stage, LayersThatShareStateAreNotDivided) {
  const auto decoder = load("families/gemma4", {});
  ASSERT_TRUE(decoder->shares_state_between_layers());
  test::expect_error<ConfigError>([&] { Stage(*decoder, nullptr, 0, 2); }, {"share", "stages"});
}

}  // namespace
}  // namespace sftrun::model
