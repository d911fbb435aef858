#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/weights/safetensors.h"
#include "support/reference.h"
#include "support/tensors.h"

namespace sftrun::train {
namespace {

namespace fs = std::filesystem;

/// What the reference optimizers did (scripts/fixtures/make_optimizers.py).
class OptimizerReference {
 public:
  OptimizerReference() : file_(directory() / "tensors.safetensors") {
    about = nlohmann::json::parse(read_text_file(directory() / "cases.json"));
  }
  at::Tensor tensor(const std::string& name) const {
    const auto* entry = file_.find(name);
    if (entry == nullptr) throw std::runtime_error("the fixture lacks " + name);
    return test::tensor_of(*entry, at::kFloat);
  }
  nlohmann::json about;

 private:
  static fs::path directory() { return fs::path(SFTRUN_TEST_DATA) / "optimizers"; }
  weights::SafetensorsFile file_;
};

TensorRole role_named(const std::string& name) {
  using enum TensorRole;
  const std::map<std::string, TensorRole> roles = {{"matrix", kLinear},
                                                   {"experts", kExperts},
                                                   {"embedding", kEmbedding},
                                                   {"head", kHead},
                                                   {"other", kOther}};
  return roles.at(name);
}

void fill_store(layers::ParameterStore& store, const OptimizerReference& reference) {
  for (const auto& p : reference.about["parameters"]) {
    store.add(p["name"], p["shape"].get<std::vector<int64_t>>(), 0, p["decays"])->role =
        role_named(p["role"]);
  }
  store.allocate(at::kBFloat16, at::kCPU);
  for (layers::Parameter& p : store.parameters())
    p.master.detach().copy_(reference.tensor("param." + p.name));
}

config::TrainConfig train_config_of(const nlohmann::json& settings) {
  nlohmann::ordered_json all = config::to_json(config::RunConfig());
  for (const auto& [key, value] : settings.items()) all["train"][key] = value;
  config::RunConfig run = config::from_json(all);
  config::resolve(run, "run.yaml", 1);
  return run.train;
}

/// The same steps here.
struct OptimizerRun {
  explicit OptimizerRun(const std::string& of_case)
      : name(of_case), train(train_config_of(reference.about["cases"].at(of_case))) {
    fill_store(store, reference);
    optimizer = make_optimizer(store, train);
  }
  /// @param in_gradient the gradients are so many times those of the reference
  void step(int64_t number, double in_gradient = 1, double grad_scale = 1) {
    const at::NoGradGuard no_grad;
    for (layers::Parameter& p : store.parameters())
      p.grad.copy_(reference.tensor(fmt::format("{}.grad.{}", number, p.name)) * in_gradient);
    optimizer->step(*train.learning_rate, grad_scale);
  }
  void take(int64_t first, int64_t end) {
    for (int64_t number = first; number < end; ++number) step(number);
  }
  at::Tensor expected(const std::string& what) const { return reference.tensor(name + "." + what); }

  const OptimizerReference reference;
  std::string name;
  config::TrainConfig train;
  layers::ParameterStore store;
  std::unique_ptr<Optimizer> optimizer;
};

constexpr int64_t kSteps = 6;  // of the fixture

class Optimizers : public testing::TestWithParam<std::string> {
 protected:
  OptimizerRun run{GetParam()};
};

std::vector<std::string> names_of_cases() {
  const OptimizerReference reference;
  std::vector<std::string> names;
  for (const auto& [name, settings] : reference.about["cases"].items()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Cases, Optimizers, testing::ValuesIn(names_of_cases()),
                         [](const auto& info) { return info.param; });

TEST(OptimizerFixture, HasTheSteps) {
  EXPECT_FALSE(names_of_cases().empty());
  EXPECT_EQ(OptimizerReference().about["steps"], kSteps);
}

TEST_P(Optimizers, WeightsAndStateAreTheReferences) {
  run.take(0, kSteps);
  for (const layers::Parameter& p : run.store.parameters()) {
    const at::Tensor end = run.expected("param." + p.name),
                     start = run.reference.tensor("param." + p.name);
    EXPECT_GT((end - start).abs().max().item<float>(), 1e-3) << p.name;
    EXPECT_TRUE(test::close(p.master, end, 1e-6)) << p.name;
    EXPECT_TRUE(at::equal(p.compute, p.master.detach().to(at::kBFloat16))) << p.name;
  }
  for (const StateTensor& part : run.optimizer->state())
    EXPECT_TRUE(test::close(part.values.view(part.shape), run.expected(part.name), 1e-6))
        << part.name;
}

TEST_P(Optimizers, ClippingMultipliesTheGradient) {
  OptimizerRun other(GetParam());
  for (int64_t i = 0; i < 3; ++i) {
    run.step(i, 0.25, 1);
    other.step(i, 1, 0.25);
  }
  EXPECT_TRUE(at::equal(run.store.master(), other.store.master()));
}

TEST_P(Optimizers, ContinueFromTheirState) {
  OptimizerRun other(GetParam());
  run.take(0, kSteps);
  other.take(0, 3);
  auto resumed = make_optimizer(other.store, other.train);
  const auto from = other.optimizer->state(), into = resumed->state();
  ASSERT_EQ(from.size(), into.size());
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].name, into[i].name);
    into[i].values.copy_(from[i].values);
  }
  resumed->set_steps(other.optimizer->steps());
  other.optimizer = std::move(resumed);
  other.take(3, kSteps);
  EXPECT_TRUE(at::equal(run.store.master(), other.store.master()));
}

TEST_P(Optimizers, TakeTheBytesThatArePlanned) {
  int64_t planned = 0;
  uint64_t named = 0;
  for (const layers::Parameter& p : run.store.parameters())
    planned += config::optimizer_state_bytes(run.train, p.role, p.shape);
  for (const StateTensor& part : run.optimizer->state()) named += part.values.nbytes();
  EXPECT_EQ(named, static_cast<uint64_t>(planned));
  EXPECT_GE(run.optimizer->bytes(), named);
}

TEST_P(Optimizers, SayWhetherTheirStateIsFinite) {
  run.take(0, kSteps);
  EXPECT_TRUE(run.optimizer->is_finite());
  const auto state = run.optimizer->state();
  for (const StateTensor& part : state) {
    const at::Tensor before = part.values.clone();
    part.values.flatten()[0] = std::nan("");
    EXPECT_FALSE(run.optimizer->is_finite()) << part.name;
    part.values.copy_(before);
  }
  EXPECT_EQ(state.empty(), GetParam() == "sgd");
}

/// LoRA+: B, and parameters with one dimension, with every optimizer.
TEST_P(Optimizers, LoraPlusRaisesTheRateOfB) {
  OptimizerRun other(GetParam());
  run.store.find("tall")->role = TensorRole::kLoraB;
  run.train.loraplus_lr_ratio = 3;
  run.train.weight_decay = other.train.weight_decay = 0;
  run.optimizer = make_optimizer(run.store, run.train);
  other.optimizer = make_optimizer(other.store, other.train);
  run.step(0);
  other.step(0);
  for (const layers::Parameter& p : run.store.parameters()) {
    const at::Tensor start = run.reference.tensor("param." + p.name),
                     of_one = other.store.find(p.name)->master - start;
    const double ratio = p.name == "tall" || p.name == "norm" ? 3 : 1;
    EXPECT_TRUE(test::close(p.master - start, of_one * ratio, 1e-4)) << p.name;
  }
}

/// Parameters of all kinds that some optimizer treats in its own way; `big` and `wide` are large
/// enough for moments in 8 bits.
void fill_store(layers::ParameterStore& store) {
  const at::NoGradGuard no_grad;
  const auto add = [&](const char* name, std::vector<int64_t> shape, TensorRole role) {
    store.add(name, std::move(shape), 0, /*decays=*/true)->role = role;
  };
  add("big", {64, 80}, TensorRole::kLinear);
  add("small", {6, 10}, TensorRole::kLoraB);
  add("experts", {3, 4, 5}, TensorRole::kExperts);
  add("wide", {70, 64}, TensorRole::kEmbedding);
  add("head", {65, 64}, TensorRole::kHead);
  add("norm", {64}, TensorRole::kNorm);
  store.allocate(at::kFloat, at::kCPU);
  for (layers::Parameter& p : store.parameters()) p.master.fill_(0.5), p.grad.fill_(0.1);
}

class OptimizerRows : public testing::TestWithParam<config::OptimizerInfo> {
 protected:
  OptimizerRows() {
    train.optimizer = GetParam().optimizer;
    if (GetParam().reads("momentum")) train.momentum = 0.9;
    fill_store(store);
    optimizer = make_optimizer(store, train);
  }
  config::TrainConfig train;
  layers::ParameterStore store;
  std::unique_ptr<Optimizer> optimizer;
};
INSTANTIATE_TEST_SUITE_P(All, OptimizerRows, testing::ValuesIn(config::kOptimizers),
                         [](const auto& info) { return std::string(info.param.name); });

/// What the row says is what the class allocates, tensor by tensor: plan and checkpoints agree.
TEST_P(OptimizerRows, SayTheStateThatTheClassHas) {
  std::map<std::string, std::pair<int64_t, int64_t>> said, held;  // values, bytes of one
  for (const layers::Parameter& p : store.parameters())
    for (const config::StateSize& part : config::optimizer_state(train, p.role, p.shape_in_files()))
      said[std::string(part.name) + "." + p.name] = {part.values, part.bytes_per_value};
  for (const StateTensor& part : optimizer->state())
    held[part.name] = {part.values.numel(), part.values.element_size()};
  EXPECT_EQ(held, said);
  EXPECT_FALSE(said.empty());
}

TEST_P(OptimizerRows, ChangeEveryParameter) {
  const at::NoGradGuard no_grad;
  optimizer->step(/*learning_rate=*/1e-2, /*grad_scale=*/1);
  for (const layers::Parameter& p : store.parameters())
    EXPECT_LT(p.master.max().item<float>(), 0.5) << p.name;
}

/// Parts of a model have their learning rates, also in a range that holds parameters of two parts.
TEST_P(OptimizerRows, PartsHaveTheirLearningRates) {
  const at::NoGradGuard no_grad;
  layers::ParameterStore parts;
  fill_store(parts);
  for (const char* name : {"small", "experts", "head"}) parts.find(name)->part = ModelPart::kVision;
  parts.find("norm")->part = ModelPart::kProjector;
  train.learning_rate = 1e-2;
  train.part_learning_rates[ModelPart::kVision] = 3e-2;
  train.part_learning_rates[ModelPart::kProjector] = 0;
  layers::OwnedValues owned = parts;
  if (!GetParam().needs_whole_matrices()) {  // as a rank owns them: from the middle of `big`
    owned.pieces[0].begin = owned.pieces[0].offset = config::kMomentBlock;
    owned.pieces[0].numel -= config::kMomentBlock;
  }
  const auto of_parts = make_optimizer(owned, train);
  of_parts->step(*train.learning_rate, 1);
  for (const layers::Parameter& p : parts.parameters()) {
    layers::ParameterStore alone;
    fill_store(alone);
    config::TrainConfig usual = train;
    usual.part_learning_rates = {};
    usual.learning_rate = train.part_learning_rates[p.part].value_or(*train.learning_rate);
    const auto of_all = make_optimizer(alone, usual);
    of_all->step(*usual.learning_rate, 1);
    at::Tensor is = p.master.flatten(), expected = alone.find(p.name)->master.flatten();
    if (p.name == "big" && !GetParam().needs_whole_matrices())
      is = is.slice(0, config::kMomentBlock), expected = expected.slice(0, config::kMomentBlock);
    EXPECT_TRUE(test::close(is, expected, 1e-6)) << p.name;
    EXPECT_EQ(p.part == ModelPart::kProjector, at::all(p.master == 0.5).item<bool>()) << p.name;
  }
}

TEST(LearningRateRatios, AreOneWithoutSettings) {
  layers::ParameterStore store;
  fill_store(store);
  config::TrainConfig train;
  train.learning_rate = 1e-4;
  for (const ModelPart part : kModelParts) {
    for (layers::Parameter& p : store.parameters()) {
      p.part = part;
      EXPECT_EQ(LearningRateRatios::from(train).of(p), 1);
    }
  }
}

/// Two ranks that divide a matrix: `division` says whether that is possible.
TEST_P(OptimizerRows, RefuseRangesOfAMatrixIfTheRowSaysSo) {
  layers::OwnedValues part = store;
  ASSERT_FALSE(part.pieces.empty());
  layers::OwnedValues::Piece& first = part.pieces.front();
  first.numel = config::kMomentBlock;  // of 64 x 80
  const auto make = [&] { return make_optimizer(part, train); };
  if (GetParam().needs_whole_matrices())
    EXPECT_THROW(make(), ConfigError);
  else
    EXPECT_NO_THROW(make());
}

}  // namespace
}  // namespace sftrun::train
