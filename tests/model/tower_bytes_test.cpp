#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/kernels/memory.h"
#include "sftrun/layers/tower.h"
#include "sftrun/model/decoder.h"
#include "sftrun/plan/step_memory.h"
#include "support/memory_since.h"
#include "support/one_thread.h"
#include "support/planned_bytes.h"

// The rows of the image side (src/plan/blocks/tower_*.cpp) beside the allocator, for towers that are wide and have two layers.
namespace sftrun::model {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTowerHidden = 256, kTowerInner = 1024, kTowerHeads = 4, kTextHidden = 256;

struct TowerCase {
  const char* kind;  ///< of tests/data/vision
  std::function<void(nlohmann::json&)> change;
  std::vector<layers::TowerTile> tiles;
};
void PrintTo(const TowerCase& tower, std::ostream* out) {
  *out << tower.kind;
}

void widen(nlohmann::json& vision) {
  vision["hidden_size"] = kTowerHidden, vision["intermediate_size"] = kTowerInner;
  vision[vision.contains("num_heads") ? "num_heads" : "num_attention_heads"] = kTowerHeads;
  vision[vision.contains("depth") ? "depth" : "num_hidden_layers"] = 2;
}

const TowerCase kTowerCases[] = {
    {"gemma3",  // SigLIP: full attention in tiles
     [](nlohmann::json& config) {
       config["mm_tokens_per_image"] = 64, config["vision_config"]["image_size"] = 128;
     },
     {{.rows = 32, .columns = 32}, {.rows = 32, .columns = 32}}},
    {"llava",  // CLIP: a class token, quick GELU
     [](nlohmann::json& config) {
       config["vision_feature_layer"] = -1;
       config["vision_config"]["image_size"] = 48;
     },
     std::vector<layers::TowerTile>(14, {.rows = 12, .columns = 12})},
    {"qwen2_5_vl",  // windows, rotary positions, gated MLP
     [](nlohmann::json& config) {
       config["vision_config"]["fullatt_block_indexes"] = {1};
       config["vision_config"]["window_size"] = 32;
     },
     {{.rows = 32, .columns = 32}, {.rows = 32, .columns = 32}}},
    {"qwen3_vl",  // interpolated positions, DeepStack
     [](nlohmann::json& config) { config["vision_config"]["deepstack_visual_indexes"] = {0}; },
     {{.rows = 32, .columns = 64}}},
    {"mistral3",  // Pixtral: one matrix for each of q, k and v
     [](nlohmann::json&) {},
     {{.rows = 32, .columns = 64}}},
    {"gemma4",  // norms of heads and after the blocks
     [](nlohmann::json& config) {
       config["vision_config"]["head_dim"] = kTowerHidden / kTowerHeads;
       config["vision_config"]["num_key_value_heads"] = kTowerHeads;
       config["vision_config"]["position_embedding_size"] = 64;
       config["vision_config"]["use_clipped_linears"] = false;
     },
     {{.rows = 36, .columns = 54}}},
};

spec::ArchSpec arch_of_tower(const TowerCase& tower) {
  const fs::path folder = fs::path(SFTRUN_TEST_DATA) / "vision" / tower.kind;
  nlohmann::json config = nlohmann::json::parse(read_text_file(folder / "config.json"));
  widen(config["vision_config"]);
  config["text_config"]["hidden_size"] = kTextHidden;
  if (config["vision_config"].contains("out_hidden_size"))
    config["vision_config"]["out_hidden_size"] = kTextHidden;
  tower.change(config);
  return spec::ArchSpec::from_hf_config(config, "config.json");
}

/// @param below, above shares of the measured bytes
void expect_near(int64_t planned, int64_t measured, double below, double above,
                 const std::string& what) {
  // A product's working memory, which does not grow.
  constexpr int64_t kPackedOperands = 640 << 10;
  test::expect_planned(planned, measured, {below, above, kPackedOperands}, what);
}

/// A model with its tower, and the plan of it.
class PlannedTower {
 public:
  PlannedTower(const TowerCase& tower, at::ScalarType dtype, Trains trains, TrainedParts parts)
      : arch_(arch_of_tower(tower)) {
    kernels::install_cpu_allocator();
    config_.tuning.mode =
        trains == Trains::kFull ? config::TuningMode::kFull : config::TuningMode::kLora;
    config_.tuning.lora.r = 8;
    for (const ModelPart part : kModelParts)
      config_.tuning.train_parts.training[part] =
          parts.has(part) ? config::PartTraining::kByMode : config::PartTraining::kFrozen;
    DecoderOptions options;
    options.dtype = dtype, options.trains = trains, options.with_vision = true;
    options.parts = parts;
    options.lora.r = 8, options.lora.target_modules = {"all-linear"};
    decoder_ = Decoder::random(arch_, options);
    input_.tiles = tower.tiles;
    plan::ImageShape images;
    for (const layers::TowerTile& tile : tower.tiles) {
      ++images.tiles, images.patches += tile.patches();
      images.longest_tile = std::max(images.longest_tile, tile.patches());
    }
    input_.patches = at::rand({images.patches, arch_.vision->patches.values()});
    layout_ = layers::tower_layout(*arch_.vision, input_.tiles, {});
    shape_ = {.tokens = 1,
              .element_bytes = static_cast<int64_t>(c10::elementSize(dtype)),
              .tower = {.is_loaded = true, .parts = parts},
              .images = images};
  }
  PlannedTower(const PlannedTower&) = delete;
  PlannedTower& operator=(const PlannedTower&) = delete;

  const layers::Tower& tower() const { return decoder_->tower(); }
  const spec::ArchSpec& arch() const { return arch_; }
  plan::StepContext step() const { return {arch_, config_, shape_}; }
  layers::TowerPass pass() const { return {tower(), input_, layout_}; }
  plan::TrainingBytes row(int64_t unit) const {
    const bool is_first = unit == 0, is_last = unit == tower().merger_unit();
    return plan::block_row(is_first  ? "tower_patches"
                           : is_last ? "tower_mergers"
                                     : "tower_layer")
        .training(step(), is_first || is_last ? -1 : unit - 1);
  }
  at::Tensor gradient_of(const at::Tensor& features) const { return at::full_like(features, 0.01); }

 private:
  OneThread one_thread_;
  spec::ArchSpec arch_;
  config::RunConfig config_;
  plan::MicroBatchShape shape_;
  std::unique_ptr<Decoder> decoder_;
  layers::TowerInput input_;
  layers::TowerLayout layout_;
};

class TowerUnitBytes
    : public testing::TestWithParam<std::tuple<TowerCase, at::ScalarType, Trains>> {
 protected:
  static std::string unit_name(const PlannedTower& model, int64_t unit) {
    std::string name = std::get<0>(GetParam()).kind;
    name += std::get<1>(GetParam()) == at::kFloat ? " fp32" : " bf16";
    name += std::get<2>(GetParam()) == Trains::kFull ? " full" : " lora";
    if (unit == 0) return name + " patches";
    return unit == model.tower().merger_unit() ? name + " mergers"
                                               : name + " layer " + std::to_string(unit - 1);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, TowerUnitBytes,
                         testing::Combine(testing::ValuesIn(kTowerCases),
                                          testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Values(Trains::kLora, Trains::kFull)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).kind) + "_" +
                                  c10::toString(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == Trains::kFull ? "_full" : "_lora");
                         });

/// A frozen tower keeps nothing, and has a peak.
TEST_P(TowerUnitBytes, AreThoseOfAFrozenPass) {
  const auto& [tower, dtype, trains] = GetParam();
  const PlannedTower model(tower, dtype, trains, {});
  for (const bool is_first : {true, false}) {  // the first one makes what stays
    layers::TowerPass pass = model.pass();
    for (int64_t unit = 0; unit < model.tower().num_units(); ++unit) {
      const MemorySince forward;
      pass.forward(unit, layers::TowerKeeps::kNothing);
      if (!is_first)
        expect_near(model.row(unit).in_forward, forward.peak(), 0.05, 0.12,
                    unit_name(model, unit) + ", forward");
    }
  }
}

struct UnitMemory {
  std::vector<int64_t> kept, in_backward;
};

/// Gradients of a unit's output that exist before its backward pass: of the next unit, and of DeepStack's mergers.
int64_t num_gradients(const PlannedTower& model, int64_t unit) {
  return 1 + std::ranges::count(model.arch().vision->deepstack_layers, unit - 1);
}

UnitMemory train_tower(const PlannedTower& model, layers::TowerKeeps keeps, int64_t first_unit) {
  const at::NoGradGuard no_grad;
  const int64_t units = model.tower().num_units();
  UnitMemory memory{std::vector<int64_t>(static_cast<size_t>(units)),
                    std::vector<int64_t>(static_cast<size_t>(units))};
  layers::TowerPass pass = model.pass();
  for (int64_t unit = 0; unit < units; ++unit) {
    const MemorySince forward;
    pass.forward(unit, unit < first_unit ? layers::TowerKeeps::kNothing : keeps);
    memory.kept[static_cast<size_t>(unit)] = forward.held();
  }
  std::vector<at::Tensor> deepstack;
  for (const at::Tensor& features : pass.deepstack_features())
    deepstack.push_back(model.gradient_of(features));
  const int64_t outputs =
      static_cast<int64_t>(pass.features().nbytes()) * (1 + static_cast<int64_t>(deepstack.size()));
  pass.set_gradients(model.gradient_of(pass.features()), std::move(deepstack));
  const auto hidden = static_cast<int64_t>(model.step().shape.images.patches) * kTowerHidden *
                      model.step().shape.element_bytes;
  for (int64_t unit = units - 1; unit >= first_unit; --unit) {
    const MemorySince backward;
    pass.backward(unit, unit > first_unit);
    memory.in_backward[static_cast<size_t>(unit)] =
        backward.peak() + (unit == units - 1 ? outputs : hidden * num_gradients(model, unit));
  }
  return memory;
}

/// The first unit that trains: adapters have none on the patches' kernel.
int64_t first_trained(const PlannedTower& model) {
  int64_t unit = 0;
  while (!model.step().tower_training.at_or_below(unit)) ++unit;
  return unit;
}

/// The graph of a layer that trains, and the peak of its backward pass.
TEST_P(TowerUnitBytes, AreThoseOfATrainedPass) {
  const auto& [tower, dtype, trains] = GetParam();
  const PlannedTower model(tower, dtype, trains,
                           {.language = false, .projector = true, .vision = true});
  const plan::StepContext step = model.step();
  const int64_t hidden = step.shape.images.patches * kTowerHidden * step.shape.element_bytes,
                first = first_trained(model);
  train_tower(model, layers::TowerKeeps::kGraph, first);  // makes what stays
  const UnitMemory graph = train_tower(model, layers::TowerKeeps::kGraph, first),
                   again = train_tower(model, layers::TowerKeeps::kInput, first);
  const int64_t last = model.tower().merger_unit();
  for (int64_t unit = first; unit <= last; ++unit) {
    const plan::TrainingBytes row = model.row(unit);
    const auto at = static_cast<size_t>(unit);
    const auto square = model.arch().vision->merger.side * model.arch().vision->merger.side;
    const int64_t output =
        unit == last
            ? (1 + static_cast<int64_t>(model.arch().vision->deepstack.size())) * hidden / square
            : hidden;
    expect_near(row.kept + output, graph.kept[at], 0.04, 0.04, unit_name(model, unit) + ", kept");
    expect_near(row.in_backward, graph.in_backward[at], 0.07, 0.12,
                unit_name(model, unit) + ", backward");
    expect_near(std::max(row.kept + row.in_backward, row.in_forward) + output,
                again.in_backward[at], 0.05, 0.10, unit_name(model, unit) + ", computed again");
  }
}

// ---- Projectors of features

class ProjectorBytes : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Cpu, ProjectorBytes, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

/// Every row of the micro-batch stands for features, as the plan supposes.
TEST_P(ProjectorBytes, AreThoseOfItsPasses) {
  constexpr int64_t kRows = 2048;
  const OneThread one_thread;
  kernels::install_cpu_allocator();
  spec::ArchSpec arch = arch_of_tower(kTowerCases[0]);
  arch.vision.reset();
  arch.projectors = {{.name = "world", .input_width = 320, .hidden = 768}};
  DecoderOptions options;
  options.dtype = GetParam(), options.trains = Trains::kFull;
  options.parts = {.language = false, .projector = true, .vision = false};
  const std::unique_ptr<Decoder> decoder = Decoder::random(arch, options);
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kFull;
  const plan::StepContext step(arch, config,
                               {.tokens = kRows,
                                .element_bytes = static_cast<int64_t>(c10::elementSize(GetParam())),
                                .tower = {.is_loaded = false, .parts = options.parts}});
  const plan::TrainingBytes planned = plan::block_row("projector").training(step, 0);
  const at::Tensor features = at::rand({kRows, 320}).to(GetParam());
  for (const bool is_first : {true, false}) {  // the first one makes what stays
    const MemorySince all;
    layers::ProjectorPass pass(decoder->projectors()[0], features);
    const at::Tensor rows = pass.forward(layers::TowerKeeps::kGraph);
    const int64_t in_forward = all.peak(), kept = all.held() - rows.nbytes();
    const at::Tensor grad = at::full_like(rows, 0.01);
    const MemorySince backward;
    pass.backward(grad);
    if (is_first) continue;
    expect_near(planned.in_forward, in_forward, 0.05, 0.1, "forward");
    expect_near(planned.kept, kept, 0.05, 0.1, "kept");
    expect_near(planned.in_backward, backward.peak() + grad.nbytes(), 0.05, 0.1, "backward");
  }
}

}  // namespace
}  // namespace sftrun::model
