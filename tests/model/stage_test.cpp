#include "sftrun/model/stage.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <map>
#include <string>

#include "sftrun/data/example_store.h"
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

/// The link between two stages of this process.
class Link final : public layers::StageLinks {
 public:
  Link(int64_t stages_after, std::deque<at::Tensor>& hidden, std::deque<at::Tensor>& grads)
      : stages_after_(stages_after), hidden_(hidden), grads_(grads) {}
  int64_t num_stages_after() const override { return stages_after_; }
  void send_hidden(const at::Tensor& hidden) override { hidden_.push_back(hidden.clone()); }
  void receive_hidden(const at::Tensor& hidden) override { take(hidden_, hidden); }
  void send_gradient(const at::Tensor& grad) override { grads_.push_back(grad.clone()); }
  void receive_gradient(const at::Tensor& grad) override { take(grads_, grad); }

 private:
  static void take(std::deque<at::Tensor>& from, const at::Tensor& to) {
    at::Tensor destination = to;
    destination.copy_(from.at(0));
    from.pop_front();
  }
  int64_t stages_after_;
  std::deque<at::Tensor>&hidden_, &grads_;
};

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> grads;  // by parameter
};

void add_gradients(Decoder& decoder, Outcome& outcome) {
  for (const layers::Parameter& parameter : decoder.parameters().parameters()) {
    if (!parameter.grad.defined()) continue;
    at::Tensor& sum = outcome.grads[parameter.name];
    sum = sum.defined() ? sum + parameter.grad : parameter.grad.clone();
  }
}

Outcome in_one_stage(const DecoderOptions& options, const std::vector<data::Batch>& batches) {
  const auto decoder = load("models/tied-gqa", options);
  Outcome outcome;
  for (const data::Batch& batch : batches) {
    const PackedBatch packed = prepare_batch(batch, decoder->rope(), decoder->batch_target(), {});
    outcome.loss += Stage(*decoder).forward_backward(packed, {.grad_scale = 0.1}).item<double>();
  }
  add_gradients(*decoder, outcome);
  return outcome;
}

// What passes between two stages are the hidden states and their gradient, and nothing else. All
// micro-batches are under way at a time.
Outcome in_two_stages(DecoderOptions options, const std::vector<data::Batch>& batches,
                      int64_t cut) {
  std::deque<at::Tensor> hidden, grads;
  Link before(1, hidden, grads), after(0, hidden, grads);
  options.held = {.first = 0, .end = cut};
  const auto lower = load("models/tied-gqa", options);
  options.held = {.first = cut};
  const auto upper = load("models/tied-gqa", options);
  EXPECT_LT(lower->base_bytes() + upper->base_bytes(),
            2 * load("models/tied-gqa", {})->base_bytes());
  const Stage first(*lower, nullptr, &before), second(*upper, nullptr, &after);
  EXPECT_FALSE(first.has_head() || second.has_embedding());
  std::deque<PackedBatch> packed;
  std::deque<MicroBatchRun> of_first, of_second;
  Outcome outcome;
  for (const data::Batch& batch : batches) {
    packed.push_back(prepare_batch(batch, lower->rope(), lower->batch_target(), {}));
    const PassOptions pass{.grad_scale = 0.1};
    first.forward(of_first.emplace_back(packed.back(), pass));
    EXPECT_EQ(first.loss(of_first.back()).item<double>(), 0);
    second.forward(of_second.emplace_back(packed.back(), pass));
    outcome.loss += second.loss(of_second.back()).item<double>();
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    second.backward(of_second[i]);
    first.backward(of_first[i]);
  }
  EXPECT_TRUE(hidden.empty() && grads.empty());
  add_gradients(*lower, outcome);
  add_gradients(*upper, outcome);  // the tied embedding is in both
  return outcome;
}

TEST(Stage, TwoStagesAreOneModel) {
  const data::Batch two = data::make_batch(data::ExampleStore::in_memory(examples()), {{0}, {1}}, 0,
                                           2),
                    one = data::make_batch(data::ExampleStore::in_memory(examples()), {{0}}, 0, 1);
  for (const Trains trains : {Trains::kFull, Trains::kLora, Trains::kPartial}) {
    for (const bool checkpoints : {false, true}) {
      DecoderOptions options;
      options.trains = trains;
      options.gradient_checkpointing = checkpoints;
      if (trains == Trains::kPartial) options.trainable = {R"(layers\.1\.mlp)"};
      const Outcome expected = in_one_stage(options, {two, one});
      for (const int64_t cut : {1, 2, 3}) {
        const Outcome outcome = in_two_stages(options, {two, one}, cut);
        EXPECT_EQ(outcome.loss, expected.loss);
        ASSERT_EQ(outcome.grads.size(), expected.grads.size());
        for (const auto& [name, grad] : expected.grads) {
          // The parts of a tied embedding's gradient are added in another order.
          EXPECT_TRUE(test::close(outcome.grads.at(name), grad, 1e-6)) << name << ", cut " << cut;
        }
      }
    }
  }
}

TEST(Stage, LayersThatShareStateAreNotDivided) {
  DecoderOptions options;
  options.held = {.first = 0, .end = 2};
  const auto decoder = load("families/gemma4", options);
  ASSERT_TRUE(decoder->shares_state_between_layers());
  std::deque<at::Tensor> sent;
  Link link(1, sent, sent);
  test::expect_error<ConfigError>([&] { Stage(*decoder, nullptr, &link); }, {"share", "stages"});
}

}  // namespace
}  // namespace sftrun::model
