#include "sftrun/weights/vllm_adapter.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "file_builders.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;
using test::expect_error;

constexpr int64_t kExperts = 3, kHidden = 4, kInner = 5, kRank = 2;
const std::string kLayer = "model.layers.0.", kGateUp = kLayer + "mlp.experts.gate_up_proj",
                  kDown = kLayer + "mlp.experts.down_proj";

json mixture_config(const char* family) {
  return {{"model_type", family},
          {"vocab_size", 8},
          {"hidden_size", kHidden},
          {"intermediate_size", kInner},
          {"moe_intermediate_size", kInner},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 2},
          {"num_local_experts", kExperts},
          {"num_experts_per_tok", 1}};
}

spec::ArchSpec mixture(const char* family) {
  return spec::ArchSpec::from_hf_config(mixture_config(family), "config.json");
}

spec::ArchSpec arch_of(const char* directory) {
  const std::filesystem::path path =
      std::filesystem::path(SFTRUN_TEST_DATA) / "families" / directory / "config.json";
  return spec::ArchSpec::from_hf_config(json::parse(read_text_file(path)), path.string());
}

/// Small whole numbers that tell their place: every product and sum below is exact.
TensorToWrite numbered(const std::string& name, const std::vector<int64_t>& shape, int64_t seed) {
  return {name, DType::kF32, shape, [=](void* out) {
            for (int64_t i = 0; i < shape[0] * shape[1]; ++i)
              static_cast<float*>(out)[i] = static_cast<float>((i * 7 + seed * 13) % 11 - 5);
          }};
}

TensorToWrite zeros(const std::string& name, const std::vector<int64_t>& shape) {
  return {name, DType::kF32, shape,
          [=](void* out) { std::fill_n(static_cast<float*>(out), shape[0] * shape[1], 0.0F); }};
}

/// A file's tensor as numbers.
struct Values {
  std::vector<int64_t> shape;
  std::vector<float> values;
  float at(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * shape[1] + column)];
  }
};

class VllmAdapter : public testing::Test {
 protected:
  void add(const std::string& module, int64_t out, int64_t in, int64_t ranks) {
    const auto seed = static_cast<int64_t>(tensors_.size());
    tensors_.push_back(numbered(lora_a_name(module), {ranks, in}, seed + 1));
    tensors_.push_back(numbered(lora_b_name(module), {out, ranks}, seed + 2));
  }
  void add_gate_up(bool with_down, int64_t r = kRank) {
    config_.lora.target_parameters.push_back("mlp.experts.gate_up_proj");
    add(kLayer + "mlp.experts" + (with_down ? ".base_layer" : ""), 2 * kInner, kHidden,
        kExperts * r);
  }
  void add_down() {
    config_.lora.target_parameters.push_back("mlp.experts.down_proj");
    add(kLayer + "mlp.experts", kHidden, kInner, kExperts * kRank);
  }
  void add_router() {
    config_.lora.target_parameters.push_back("mlp.gate.weight");
    add(kLayer + "mlp.gate", kExperts, kHidden, kRank);
  }

  void save() {
    std::sort(config_.lora.target_parameters.begin(), config_.lora.target_parameters.end());
    write_adapter(directory_ / "peft", config_, tensors_);
  }
  void write(const spec::ArchSpec& arch) {
    save();
    write_vllm_adapter(directory_ / "peft", directory_ / "vllm", arch);
    written_ = json::parse(read_text_file(directory_ / "vllm" / "adapter_config.json"));
    file_.clear();
    const SafetensorsFile file(directory_ / "vllm" / "adapter_model.safetensors");
    for (const SafetensorsEntry& entry : file.entries()) {
      EXPECT_EQ(entry.dtype, "F32");
      const auto* values = reinterpret_cast<const float*>(entry.bytes.data());
      file_[entry.name] = {entry.shape, {values, values + entry.bytes.size() / sizeof(float)}};
    }
  }
  std::set<std::string> modules() const {
    std::set<std::string> names;
    const std::string prefix = "base_model.model.", ending = ".lora_A.weight";
    for (const auto& [name, values] : file_) {
      if (name.ends_with(ending))
        names.insert(name.substr(prefix.size(), name.size() - prefix.size() - ending.size()));
    }
    EXPECT_EQ(file_.size(), 2 * names.size());
    return names;
  }
  const Values& a(const std::string& module) const { return file_.at(lora_a_name(module)); }
  const Values& b(const std::string& module) const { return file_.at(lora_b_name(module)); }

  /// An entry of B A of a matrix that was written.
  double update(const std::string& module, int64_t row, int64_t column) const {
    double sum = 0;
    for (int64_t i = 0; i < a(module).shape[0]; ++i)
      sum += static_cast<double>(b(module).at(row, i)) * a(module).at(i, column);
    return sum;
  }
  /// Every expert's matrix adds what the update of all experts had for it.
  void expect_part(const LoraPair& whole, const std::string& layer, const std::string& matrix,
                   int64_t first_row, int64_t ranks, double scale) const {
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string module = fmt::format("{}.experts.{}.{}", layer, e, matrix);
      SCOPED_TRACE(module);
      const bool is_down = whole.in_features == kInner;
      const int64_t rows = is_down ? kHidden : kInner;
      ASSERT_EQ(a(module).shape, (std::vector<int64_t>{ranks, whole.in_features}));
      ASSERT_EQ(b(module).shape, (std::vector<int64_t>{rows, ranks}));
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < whole.in_features; ++column) {
          double expected = 0;
          for (int64_t i = 0; i < whole.r; ++i) {
            const int64_t at = ((first_row + row) * whole.r + i) * kExperts + e;
            expected +=
                static_cast<double>(whole.b[static_cast<size_t>(at)]) *
                whole.a[static_cast<size_t>((e * whole.r + i) * whole.in_features + column)];
          }
          EXPECT_EQ(update(module, row, column) * scale, expected * whole.scale);
        }
      }
    }
  }
  AdapterTensors peft(const spec::ArchSpec& arch) const {
    return load_adapter(directory_ / "peft", load_adapter_config(directory_ / "peft", arch), arch);
  }

  test::TemporaryDirectory directory_;
  AdapterConfig config_{.lora = {.r = kRank, .alpha = 8, .target_modules = {"q_proj"}}};
  std::vector<TensorToWrite> tensors_;
  std::map<std::string, Values> file_;
  json written_;
};

std::set<std::string> experts_of(const std::string& layer,
                                 std::initializer_list<const char*> names) {
  std::set<std::string> modules;
  for (int64_t e = 0; e < kExperts; ++e) {
    for (const char* name : names) modules.insert(fmt::format("{}.experts.{}.{}", layer, e, name));
  }
  return modules;
}

TEST_F(VllmAdapter, MixtralsAreCalledAsItsFiles) {
  add(kLayer + "self_attn.q_proj", kHidden, kHidden, kRank);
  add_gate_up(/*with_down=*/true);
  add_down();
  add_router();
  const spec::ArchSpec arch = mixture("mixtral");
  write(arch);
  const std::string block = kLayer + "block_sparse_moe";
  std::set<std::string> expected = experts_of(block, {"w1", "w3", "w2"});
  expected.insert({block + ".gate", kLayer + "self_attn.q_proj"});
  EXPECT_EQ(modules(), expected);
  const AdapterTensors adapter = peft(arch);
  expect_part(adapter.lora.at(kGateUp), block, "w1", 0, kRank, 4);
  expect_part(adapter.lora.at(kGateUp), block, "w3", kInner, kRank, 4);
  expect_part(adapter.lora.at(kDown), block, "w2", 0, kRank, 4);
  EXPECT_EQ(a(block + ".gate").values, adapter.lora.at(kLayer + "mlp.gate").a);
  EXPECT_EQ(b(kLayer + "self_attn.q_proj").values, adapter.lora.at(kLayer + "self_attn.q_proj").b);
  EXPECT_EQ(written_["target_modules"], (json{"gate", "q_proj", "w1", "w2", "w3"}));
  EXPECT_TRUE(written_["target_parameters"].is_null());
  EXPECT_TRUE(written_["rank_pattern"].empty() && written_["alpha_pattern"].empty());
  EXPECT_EQ(written_["r"], kRank);
}

TEST_F(VllmAdapter, QwensAreCalledAsItsModules) {
  add_gate_up(/*with_down=*/true);
  add_down();
  add_router();
  config_.lora.target_modules.clear();
  const spec::ArchSpec arch = mixture("qwen3_moe");
  write(arch);
  std::set<std::string> expected =
      experts_of(kLayer + "mlp", {"gate_proj", "up_proj", "down_proj"});
  expected.insert(kLayer + "mlp.gate");
  EXPECT_EQ(modules(), expected);
  const AdapterTensors adapter = peft(arch);
  expect_part(adapter.lora.at(kGateUp), kLayer + "mlp", "gate_proj", 0, kRank, 4);
  expect_part(adapter.lora.at(kGateUp), kLayer + "mlp", "up_proj", kInner, kRank, 4);
  expect_part(adapter.lora.at(kDown), kLayer + "mlp", "down_proj", 0, kRank, 4);
  EXPECT_EQ(written_["target_modules"], (json{"down_proj", "gate", "gate_proj", "up_proj"}));
}

TEST_F(VllmAdapter, WhatIsWrittenReadsAsWhatWasThere) {
  add_gate_up(/*with_down=*/true);
  add_down();
  add_router();
  const spec::ArchSpec arch = mixture("mixtral");
  write(arch);
  const AdapterConfig config = load_adapter_config(directory_ / "vllm", arch);
  const AdapterTensors back = load_adapter(directory_ / "vllm", config, arch), was = peft(arch);
  ASSERT_EQ(back.lora.size(), was.lora.size());
  EXPECT_EQ(back.lora.at(kDown).a, was.lora.at(kDown).a);
  EXPECT_EQ(back.lora.at(kDown).b, was.lora.at(kDown).b);
  EXPECT_EQ(back.lora.at(kDown).scale, was.lora.at(kDown).scale);
  EXPECT_EQ(back.lora.at(kLayer + "mlp.gate").b, was.lora.at(kLayer + "mlp.gate").b);
  EXPECT_EQ(back.lora.at(kGateUp).r, 2 * kRank);
  EXPECT_EQ(back.lora.at(kGateUp).scale, was.lora.at(kGateUp).scale);
  // And once more, from single experts: nothing changes.
  const std::map<std::string, Values> first = file_;
  write_vllm_adapter(directory_ / "vllm", directory_ / "again", arch);
  const SafetensorsFile again(directory_ / "again" / "adapter_model.safetensors");
  ASSERT_EQ(again.entries().size(), first.size());
  for (const SafetensorsEntry& entry : again.entries()) {
    EXPECT_EQ(entry.shape, first.at(entry.name).shape) << entry.name;
    EXPECT_EQ(
        std::memcmp(entry.bytes.data(), first.at(entry.name).values.data(), entry.bytes.size()), 0)
        << entry.name;
  }
}

double update_at(const LoraPair& pair, int64_t expert, int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t i = 0; i < pair.r; ++i) {
    sum += static_cast<double>(
               pair.b[static_cast<size_t>((row * pair.r + i) * pair.num_experts + expert)]) *
           static_cast<double>(
               pair.a[static_cast<size_t>((expert * pair.r + i) * pair.in_features + column)]);
  }
  return sum;
}

TEST_F(VllmAdapter, GateAndUpOfAnotherRank) {
  config_.lora.rank_pattern = {{".*\\.gate_up_proj", 2 * kRank}};
  config_.lora.alpha_pattern = {{".*\\.gate_up_proj", 48}};
  config_.lora.target_pattern = spec::target_pattern("model\\.layers.*q_proj");
  add_gate_up(/*with_down=*/true, 2 * kRank);
  add_down();
  const spec::ArchSpec arch = mixture("mixtral");
  write(arch);
  const std::string block = kLayer + "block_sparse_moe";
  const AdapterTensors adapter = peft(arch);
  expect_part(adapter.lora.at(kGateUp), block, "w1", 0, 2 * kRank, 12);
  expect_part(adapter.lora.at(kGateUp), block, "w3", kInner, 2 * kRank, 12);
  expect_part(adapter.lora.at(kDown), block, "w2", 0, kRank, 4);
  EXPECT_EQ(written_["rank_pattern"], (json{{"experts\\.[0-9]+\\.(?:w1|w3)", 2 * kRank}}));
  EXPECT_EQ(written_["alpha_pattern"], (json{{"experts\\.[0-9]+\\.(?:w1|w3)", 48}}));
  EXPECT_EQ(written_["target_modules"], "(?:model\\.layers.*q_proj)|.*\\.(?:w1|w2|w3)");
  // Read again, gate and up have A's of their own, of the same values: the update is the same.
  const AdapterTensors back =
      load_adapter(directory_ / "vllm", load_adapter_config(directory_ / "vllm", arch), arch);
  const LoraPair &was = adapter.lora.at(kGateUp), &is = back.lora.at(kGateUp);
  EXPECT_EQ(is.r, 2 * was.r);
  EXPECT_EQ(is.scale, was.scale);
  for (int64_t expert = 0; expert < was.num_experts; ++expert) {
    for (int64_t row = 0; row < was.out_features; ++row)
      EXPECT_EQ(update_at(is, expert, row, row % kHidden),
                update_at(was, expert, row, row % kHidden));
  }
}

TEST_F(VllmAdapter, OfExpertsThatAreNotAdaptedItHasZeros) {
  for (const bool is_down : {true, false}) {
    SCOPED_TRACE(is_down);
    tensors_.clear();
    config_.lora.target_parameters.clear();
    is_down ? add_down() : add_gate_up(/*with_down=*/false);
    const spec::ArchSpec arch = mixture("mixtral");
    write(arch);
    const std::string block = kLayer + "block_sparse_moe";
    EXPECT_EQ(modules(), experts_of(block, {"w1", "w3", "w2"}));
    for (const auto& [matrix, shape] : {std::pair{"w1", std::pair{kInner, kHidden}},
                                        {"w3", {kInner, kHidden}},
                                        {"w2", {kHidden, kInner}}}) {
      const std::string module = fmt::format("{}.experts.1.{}", block, matrix);
      EXPECT_EQ(a(module).shape, (std::vector<int64_t>{kRank, shape.second}));
      EXPECT_EQ(b(module).shape, (std::vector<int64_t>{shape.first, kRank}));
      const bool is_zero = b(module).values == std::vector<float>(b(module).values.size(), 0.0F);
      EXPECT_EQ(is_zero, (std::string(matrix) != "w2") == is_down) << matrix;
    }
  }
}

// Shapes of the models in tests/data/families: what vLLM takes together stays together.
TEST_F(VllmAdapter, TogetherWhereVllmTakesThemSo) {
  for (const auto& [family, router] :
       {std::pair{"gpt_oss", "mlp.router"}, {"qwen3_5_moe_released", "mlp.gate"}}) {
    SCOPED_TRACE(family);
    const spec::ArchSpec arch = arch_of(family);
    const std::string layer = spec::name_in_layer(arch, 0, "mlp.");
    const int64_t experts = arch.mixture.num_experts, inner = arch.mixture.intermediate_size;
    tensors_.clear();
    config_.lora.target_modules.clear();
    config_.lora.target_parameters = {"mlp.experts.down_proj", std::string(router) + ".weight"};
    add(layer + "experts", arch.hidden_size, inner, experts * kRank);
    add(spec::name_in_layer(arch, 0, router), experts, arch.hidden_size, kRank);
    write(arch);
    EXPECT_EQ(modules(), (std::set<std::string>{layer + "experts", layer + "experts.base_layer",
                                                spec::name_in_layer(arch, 0, router)}));
    EXPECT_EQ(a(layer + "experts.base_layer").shape,
              (std::vector<int64_t>{experts * kRank, arch.hidden_size}));
    const Values& b_of_gate_up = b(layer + "experts.base_layer");
    EXPECT_EQ(b_of_gate_up.shape, (std::vector<int64_t>{2 * inner, experts * kRank}));
    EXPECT_EQ(b_of_gate_up.values, std::vector<float>(b_of_gate_up.values.size(), 0.0F));
    const AdapterTensors was = peft(arch);
    EXPECT_EQ(b(layer + "experts").values, was.lora.at(layer + "experts.down_proj").b);
    EXPECT_EQ(written_["target_parameters"],
              (json{"mlp.experts.down_proj", "mlp.experts.gate_up_proj",
                    std::string(router) + ".weight"}));
    EXPECT_TRUE(written_["target_modules"].empty());
    // PEFT's layout still: it reads as what was there.
    const AdapterConfig config = load_adapter_config(directory_ / "vllm", arch);
    const AdapterTensors back = load_adapter(directory_ / "vllm", config, arch);
    EXPECT_EQ(back.lora.size(), 3U);
    EXPECT_EQ(back.lora.at(layer + "experts.down_proj").b,
              was.lora.at(layer + "experts.down_proj").b);
  }
}

TEST_F(VllmAdapter, EachOfTheTextPartAlone) {
  const spec::ArchSpec arch = arch_of("qwen3_5_moe");
  const std::string layer = spec::name_in_layer(arch, 0, "mlp.experts");
  config_.lora.target_modules.clear();
  config_.lora.target_parameters = {"mlp.experts.down_proj"};
  add(layer, arch.hidden_size, arch.mixture.intermediate_size, arch.mixture.num_experts * kRank);
  write(arch);
  EXPECT_EQ(static_cast<int64_t>(modules().size()), 3 * arch.mixture.num_experts);
  EXPECT_TRUE(modules().contains(layer + ".0.gate_proj"));
}

TEST_F(VllmAdapter, Gemmas) {
  const spec::ArchSpec arch = arch_of("gemma4_moe_released");
  const std::string layer = spec::name_in_layer(arch, 0, "experts");
  int64_t sharing = 0;  // a layer whose values are its keys
  while (!arch.layers.at(static_cast<size_t>(sharing)).value_is_key) ++sharing;
  const std::string attention = spec::name_in_layer(arch, sharing, "self_attn.");
  const int64_t experts = arch.mixture.num_experts, inner = arch.mixture.intermediate_size,
                keys = spec::attention_sizes(arch, sharing).keys();
  config_.lora.target_modules = {"k_proj"};
  config_.lora.target_parameters = {"experts.down_proj", "experts.gate_up_proj"};
  add(attention + "k_proj", keys, arch.hidden_size, kRank);
  add(layer + ".base_layer", 2 * inner, arch.hidden_size, experts * kRank);
  add(layer, arch.hidden_size, inner, experts * kRank);
  write(arch);
  std::set<std::string> expected = {attention + "k_proj", attention + "v_proj"};
  for (int64_t e = 0; e < experts; ++e) {
    for (const char* matrix : {"gate_proj", "up_proj", "down_proj"})
      expected.insert(fmt::format("{}.{}.{}", layer, e, matrix));
  }
  EXPECT_EQ(modules(), expected);
  EXPECT_EQ(a(attention + "v_proj").values, a(attention + "k_proj").values);
  EXPECT_EQ(b(attention + "v_proj").values, b(attention + "k_proj").values);
  EXPECT_EQ(b(layer + ".1.up_proj").shape, (std::vector<int64_t>{inner, kRank}));
  EXPECT_EQ(written_["target_modules"],
            (json{"down_proj", "gate_proj", "k_proj", "up_proj", "v_proj"}));
}

TEST_F(VllmAdapter, OfLinearLayersItStaysAsItIs) {
  add(kLayer + "self_attn.q_proj", kHidden, kHidden, kRank);
  json dense = mixture_config("qwen3");
  save();
  test::write_file(directory_ / "peft" / "chat_template.jinja", "{{ messages }}");
  write_template_variables(directory_ / "peft", {{"enable_thinking", false}});
  write(spec::ArchSpec::from_hf_config(dense, "config.json"));
  EXPECT_EQ(modules(), (std::set<std::string>{kLayer + "self_attn.q_proj"}));
  EXPECT_EQ(written_, config_.to_json());
  EXPECT_EQ(read_text_file(directory_ / "vllm" / "chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(read_template_variables(directory_ / "vllm"),
            templates::Json({{"enable_thinking", false}}));
}

TEST(TemplateVariables, AreGivenToEachProgramInItsWay) {
  EXPECT_EQ(variables_warning({}, TemplateReader::kVllm), "");
  const templates::Json variables = {{"enable_thinking", false}};
  EXPECT_EQ(variables_warning(variables, TemplateReader::kLlamaCpp),
            "trained with variables of the chat template, which llama.cpp does not read from its "
            "files: start llama-server with --chat-template-kwargs '{\"enable_thinking\":false}'");
  EXPECT_EQ(variables_warning(variables, TemplateReader::kVllm),
            "trained with variables of the chat template, which vLLM does not read from its files: "
            "give them in each request: \"chat_template_kwargs\": {\"enable_thinking\":false}");
}

TEST_F(VllmAdapter, WholeModulesAreRefused) {
  add(kLayer + "self_attn.q_proj", kHidden, kHidden, kRank);
  tensors_.push_back(zeros("base_model.model.lm_head.weight", {8, kHidden}));
  config_.lora.modules_to_save = {"lm_head"};
  save();
  expect_error(
      [&] { write_vllm_adapter(directory_ / "peft", directory_ / "vllm", mixture("qwen3_moe")); },
      {"vLLM does not support adapters with modules_to_save", "peft"});
  EXPECT_FALSE(std::filesystem::exists(directory_ / "vllm"));
}

TEST_F(VllmAdapter, EmbeddingAndHeadAreRefused) {
  add("lm_head", 8, kHidden, kRank);
  save();
  json config = mixture_config("qwen3");
  config["vocab_size"] = 8;
  expect_error([&] { write(spec::ArchSpec::from_hf_config(config, "config.json")); },
               {"vLLM does not support adapters with an update of lm_head",
                "serve the merged model: sftrun merge --adapter " + (directory_ / "peft").string() +
                    " --output " + (directory_ / "peft").string() + "-merged"});
  const auto refused = [](const spec::LoraSpec& lora, bool has_whole_modules, const char* adapted) {
    const auto refusal = vllm_refusal(lora, has_whole_modules, mixture("qwen3_moe"),
                                      [&](const std::string& module) { return module == adapted; });
    return refusal ? refusal->what : "";
  };
  EXPECT_EQ(refused({.r = 512}, false, "model.layers.0.self_attn.q_proj"), "");
  EXPECT_EQ(refused({}, false, "lm_head"), "an update of lm_head, for most families");
  EXPECT_EQ(refused({.r = 513}, false, ""), "a rank of 513");
  EXPECT_EQ(refused({}, true, ""), "modules_to_save");
  EXPECT_EQ(refused({.dora = true}, true, "lm_head"), "DoRA");
}

std::optional<VllmReading> reading(const spec::ArchSpec& arch, const std::set<std::string>& names) {
  return vllm_reading(arch, [&](const std::string& module) { return names.contains(module); });
}

TEST(VllmReading, SaysWhatIsLost) {
  const spec::ArchSpec mixtral = mixture("mixtral"), qwen = mixture("qwen3_moe"),
                       gpt_oss = arch_of("gpt_oss"), gemma = arch_of("gemma4_moe");
  const std::string q = kLayer + "self_attn.q_proj";
  EXPECT_FALSE(reading(mixtral, {q}) || reading(qwen, {q}) || reading(gpt_oss, {q}));
  EXPECT_FALSE(reading(qwen, {kLayer + "mlp.gate"}));
  EXPECT_TRUE(reading(mixtral, {kLayer + "mlp.gate"})->is_silent);
  EXPECT_TRUE(reading(mixtral, {kGateUp, kDown})->is_silent);
  EXPECT_FALSE(reading(qwen, {kGateUp, kDown})->is_silent);
  EXPECT_FALSE(reading(gpt_oss, {kGateUp, kDown}));
  EXPECT_FALSE(reading(gpt_oss, {kDown})->is_silent);
  EXPECT_FALSE(reading(gemma, {kLayer + "experts.down_proj"})->is_silent);
  int64_t layer = 0;
  while (!gemma.layers.at(static_cast<size_t>(layer)).value_is_key) ++layer;
  EXPECT_TRUE(reading(gemma, {spec::name_in_layer(gemma, layer, "self_attn.k_proj")})->is_silent);
}

}  // namespace
}  // namespace sftrun::weights
