#include <gtest/gtest.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "sftrun/core/strings.h"
#include "sftrun/spec/vision_tensors.h"

/// Names and shapes against what transformers has (scripts/fixtures/make_vision_shapes.py).
namespace sftrun::spec {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kAgain = "made by scripts/fixtures/make_vision_shapes.py";
const fs::path kFixtures = fs::path(SFTRUN_TEST_DATA) / "spec" / "vision";

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

json read_fixture(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

/// "0-2,4" -> 0, 1, 2, 4
std::vector<int> numbers_of(const std::string& text) {
  std::vector<int> numbers;
  for (const std::string_view part : split(text, ',')) {
    int first = 0;
    const char* end = part.data() + part.size();
    const auto [next, error] = std::from_chars(part.data(), end, first);
    int last = first;
    if (next != end) std::from_chars(next + 1, end, last);
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes shapes_in(const json& tensors) {
  Shapes shapes;
  for (const json& line : tensors) {
    const std::string pattern = line[0], numbers = line[2];
    const auto shape = line[1].get<std::vector<int64_t>>();
    if (numbers.empty()) shapes[pattern] = shape;
    for (const int number : numbers.empty() ? std::vector<int>() : numbers_of(numbers))
      shapes[fmt::format(fmt::runtime(pattern), number)] = shape;
  }
  return shapes;
}

/// transformers stacks experts in memory in this order; other tensors have in memory the shape that files have.
Shapes shapes_of(const std::vector<TensorSpec>& specs) {
  Shapes shapes;
  for (const TensorSpec& spec : specs) {
    const bool added =
        shapes
            .emplace(spec.name,
                     spec.role == TensorRole::kExperts ? spec.shape : spec.shape_in_files())
            .second;
    EXPECT_TRUE(added) << spec.name << " is there twice";
  }
  return shapes;
}

std::vector<TensorSpec> vision_specs(const ArchSpec& arch) {
  return arch.vision ? vision_tensor_specs(*arch.vision, arch.hidden_size)
                     : std::vector<TensorSpec>();
}

bool is_unused_by_tower(const ArchSpec& arch, const std::string& name) {
  const auto begins = [&](const std::string& prefix) { return name.starts_with(prefix); };
  return arch.vision && std::any_of(arch.vision->unused.begin(), arch.vision->unused.end(), begins);
}

bool is_sound(const std::string& name) {
  return name.starts_with("model.audio_tower.") || name.starts_with("model.embed_audio.");
}

class ReleasedShapes : public ::testing::TestWithParam<std::string> {
 protected:
  json fixture_ = read_fixture(kFixtures / "released" / (GetParam() + ".json"));
  ArchSpec arch_ = ArchSpec::from_hf_config(fixture_["config"], "config.json");
  Shapes theirs_ = shapes_in(fixture_["tensors"]);
};

TEST_P(ReleasedShapes, AreTransformers) {
  std::vector<TensorSpec> specs = tensor_specs(arch_);
  for (TensorSpec& spec : vision_specs(arch_)) specs.push_back(std::move(spec));
  const Shapes ours = shapes_of(specs);
  for (const auto& [name, shape] : theirs_) {
    if (is_sound(name) || is_unused_by_tower(arch_, name)) continue;
    const auto found = ours.find(name);
    ASSERT_NE(found, ours.end()) << name << " is missing; " << kAgain;
    EXPECT_EQ(found->second, shape) << name;
  }
  for (const auto& [name, shape] : ours)
    EXPECT_TRUE(theirs_.contains(name)) << name << " is not transformers'; " << kAgain;
}

TEST_P(ReleasedShapes, EachTensorIsInOnePart) {
  std::map<std::string, ModelPart> listed;
  for (const TensorSpec& spec : tensor_specs(arch_)) listed[spec.name] = spec.part;
  for (const TensorSpec& spec : vision_specs(arch_)) {
    EXPECT_TRUE(listed.emplace(spec.name, spec.part).second) << spec.name << " is in two parts";
    EXPECT_NE(spec.part, ModelPart::kLanguage) << spec.name;
    EXPECT_EQ(spec.part == ModelPart::kProjector,
              spec.unit == VisionUnit::kProjector || spec.name == arch_.vision->newline)
        << spec.name;
  }
  for (const auto& [name, shape] : theirs_) {
    const std::optional<ModelPart> part = part_of(arch_, name);
    EXPECT_EQ(part.has_value(), !is_sound(name)) << name;
    if (!part || is_unused_by_tower(arch_, name)) continue;
    const auto found = listed.find(name);
    ASSERT_NE(found, listed.end()) << name;
    EXPECT_EQ(*part, found->second) << name;
  }
}

TEST_P(ReleasedShapes, UnitsFollowInTheOrderOfUse) {
  const std::vector<TensorSpec> specs = vision_specs(arch_);
  ASSERT_FALSE(specs.empty());
  std::vector<std::pair<VisionUnit, int64_t>> units;
  for (const TensorSpec& spec : specs) {
    const std::pair unit{spec.unit, spec.layer};
    if (units.empty() || units.back() != unit) units.push_back(unit);
  }
  EXPECT_EQ(units.front().first, VisionUnit::kEmbedding);
  EXPECT_EQ(units.back(), (std::pair{VisionUnit::kProjector, int64_t{-1}}));
  EXPECT_EQ(std::set(units.begin(), units.end()).size(), units.size()) << "a unit is in pieces";
  for (int64_t layer = 0; layer < arch_.vision->num_layers; ++layer)
    EXPECT_EQ(units.at(static_cast<size_t>(layer) + 1), (std::pair{VisionUnit::kLayer, layer}));
}

TEST_P(ReleasedShapes, LayoutsHaveTheSameValues) {
  for (const TensorSpec& spec : vision_specs(arch_)) {
    int64_t in_files = 1;
    for (const int64_t size : spec.shape_in_files()) in_files *= size;
    EXPECT_EQ(in_files, spec.numel()) << spec.name;
    EXPECT_LE(spec.shape.size(), spec.name == arch_.vision->position_table ? 3U : 2U) << spec.name;
  }
}

/// Names of the norms with weights in the first layer and outside the layers, and their eps.
std::map<std::string, double> eps_of_norms(const VisionSpec& vision) {
  std::map<std::string, double> eps;
  const auto add = [&](const std::string& prefix, const TowerNorm& norm) {
    if (norm.exists() && !norm.module.empty()) eps[prefix + norm.module] = norm.eps;
  };
  const TowerLayer& layer = vision.layer;
  for (const TowerNorm& norm : {layer.attention_in, layer.attention_out, layer.mlp_in,
                                layer.mlp_out, layer.query, layer.key})
    add(vision.layers + "0.", norm);
  std::vector<Merger> mergers = vision.deepstack;
  mergers.push_back(vision.merger);
  for (const TowerNorm& norm : {vision.pre_norm, vision.post_norm}) add("", norm);
  for (const Merger& merger : mergers)
    for (const TowerNorm& norm : {merger.before, merger.after}) add("", norm);
  return eps;
}

TEST_P(ReleasedShapes, NormsHaveTransformersEps) {
  const auto ours = eps_of_norms(*arch_.vision);
  EXPECT_GE(ours.size(), 3U);
  for (const auto& [module, eps] : ours) {
    ASSERT_TRUE(fixture_["norms"].contains(module)) << module << "; " << kAgain;
    EXPECT_EQ(eps, fixture_["norms"][module].get<double>()) << module;
  }
  // Norms without a weight.
  for (const TowerNorm& norm : {arch_.vision->layer.value, arch_.vision->merger.after})
    EXPECT_TRUE(norm.kind != TowerNormKind::kRmsPlain || norm.eps == 1e-6);
}

TEST_P(ReleasedShapes, NumbersAreTransformers) {
  const json &facts = fixture_["facts"], &text = facts["text"];
  const std::map<std::string, TowerActivation> activations = {
      {"silu", TowerActivation::kSilu},
      {"gelu", TowerActivation::kGelu},
      {"gelu_pytorch_tanh", TowerActivation::kGeluTanh},
      {"quick_gelu", TowerActivation::kQuickGelu}};
  EXPECT_EQ(arch_.vision->activation, activations.at(facts["activation"]));
  EXPECT_EQ(arch_.vision->num_heads, facts["num_heads"]);
  EXPECT_EQ(arch_.vision->image_token_id, facts["image_token_id"]);
  EXPECT_EQ(facts["rope_theta"].is_null(), arch_.vision->rope == TowerRope::kNone);
  if (!facts["rope_theta"].is_null()) {
    EXPECT_EQ(arch_.vision->rope_theta, facts["rope_theta"].get<double>());
  }

  EXPECT_EQ(arch_.num_heads, text["num_heads"]);
  EXPECT_EQ(arch_.rms_norm_eps, text["eps"].get<double>());
  EXPECT_EQ(arch_.ropes[0].theta, text["rope_theta"].get<double>());
  EXPECT_EQ(arch_.max_position_embeddings, text["max_position_embeddings"]);
  EXPECT_EQ(arch_.tie_word_embeddings, text["tied"]);
  if (!text["sections"].is_null()) {
    EXPECT_EQ(arch_.ropes[0].sections, text["sections"].get<std::vector<int64_t>>());
  }

  if (arch_.mixture.num_experts > 0 && !text["experts_per_token"].is_null()) {
    EXPECT_EQ(arch_.mixture.top_k, text["experts_per_token"]);
  }

  std::string windows;
  for (const LayerSpec& layer : arch_.layers) windows += layer.window > 0 ? 'w' : '-';
  if (text["windows"] != "") {
    EXPECT_EQ(windows, text["windows"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ReleasedShapes,
                         ::testing::ValuesIn(names_in(kFixtures / "released")), test_name);

class NamesInFiles : public ::testing::TestWithParam<std::string> {};

TEST_P(NamesInFiles, AreThoseOfTheModel) {
  const json fixture = read_fixture(kFixtures / "names" / (GetParam() + ".json"));
  const ArchSpec arch = ArchSpec::from_hf_config(fixture["config"], "config.json");
  EXPECT_EQ(arch.whole_model, GetParam());
  std::set<std::string> known, layouts;
  std::map<std::string, std::string> of_part;  // tensors that files store in parts
  for (const TensorSpec& spec : tensor_specs(arch)) {
    known.insert(spec.name);
    for (const TensorPart& part : spec.parts) of_part[part.name] = spec.name;
  }
  for (const TensorSpec& spec : vision_specs(arch)) known.insert(spec.name);
  for (const json& line : fixture["layouts"]) {
    const std::string layout = line[0], stored = line[1], wanted = line[2],
                      name = name_in_whole_model(arch, stored);
    const auto part = of_part.find(name);
    EXPECT_EQ(part == of_part.end() ? name : part->second, wanted) << layout << ": " << stored;
    EXPECT_TRUE(known.contains(wanted)) << wanted;
    layouts.insert(layout);
  }
  EXPECT_GE(layouts.size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Models, NamesInFiles, ::testing::ValuesIn(names_in(kFixtures / "names")),
                         test_name);

}  // namespace
}  // namespace sftrun::spec
