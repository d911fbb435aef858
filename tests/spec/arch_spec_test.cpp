#include "sftrun/spec/arch_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/expect_error.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;
using test::expect_error;

json small_config() {
  return {{"model_type", "llama"},
          {"vocab_size", 128},
          {"hidden_size", 48},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", true},
          {"eos_token_id", json::array({2, 7})},
          {"bos_token_id", 1}};
}

ArchSpec parse(const json& config) {
  return ArchSpec::from_hf_config(config, "m/config.json");
}

TEST(FromHfConfig, ReadsEveryField) {
  json config = small_config();
  config["head_dim"] = 16;
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  const ArchSpec arch = parse(config);
  EXPECT_EQ(arch.family, "llama");
  EXPECT_EQ(arch.vocab_size, 128);
  EXPECT_EQ(arch.hidden_size, 48);
  EXPECT_EQ(arch.intermediate_size, 96);
  EXPECT_EQ(arch.num_layers, 2);
  EXPECT_EQ(arch.num_heads, 6);
  EXPECT_EQ(arch.num_kv_heads, 2);
  EXPECT_EQ(arch.head_dim, 16);
  EXPECT_EQ(arch.max_position_embeddings, 512);
  EXPECT_EQ(arch.rms_norm_eps, 1e-5);
  EXPECT_TRUE(arch.tie_word_embeddings && arch.qkv_bias && arch.o_bias && arch.mlp_bias);
  EXPECT_EQ(arch.bos_token_id, 1);
  EXPECT_EQ(arch.eos_token_ids, (std::vector<int64_t>{2, 7}));
}

TEST(FromHfConfig, DefaultsAreTransformers) {
  json config = small_config();
  for (const char* key : {"num_key_value_heads", "rms_norm_eps", "tie_word_embeddings",
                          "eos_token_id", "bos_token_id"}) {
    config.erase(key);
  }
  config["head_dim"] = nullptr;
  const ArchSpec arch = parse(config);
  EXPECT_EQ(arch.num_kv_heads, 6);
  EXPECT_EQ(arch.head_dim, 8);
  EXPECT_EQ(arch.rms_norm_eps, 1e-6);
  EXPECT_EQ(arch.ropes[0].type, RopeType::kDefault);
  EXPECT_EQ(arch.ropes[0].theta, 10000.0);
  EXPECT_FALSE(arch.tie_word_embeddings || arch.bos_token_id.has_value());
  EXPECT_TRUE(arch.eos_token_ids.empty());
}

TEST(FromHfConfig, OldRopeKeysWinAsInTransformers) {
  json config = small_config();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  config["rope_theta"] = 5000.0;
  EXPECT_EQ(parse(config).ropes[0].theta, 7.0);
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(parse(config).ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(parse(config).ropes[0].theta, 5000.0);
}

struct BadConfig {
  const char* key;
  json value;
  std::vector<std::string> parts;
};

TEST(FromHfConfig, NamesWhatIsWrong) {
  const std::vector<BadConfig> cases = {
      {"model_type", nullptr, {"`model_type` is missing", "config.json of a transformers model"}},
      {"model_type", "mamba", {"\"mamba\" is not supported", "supported families: llama"}},
      {"hidden_size", nullptr, {"`hidden_size` is missing"}},
      {"hidden_size", "48", {"`hidden_size` must be an integer", "it is \"48\""}},
      {"hidden_size", -48, {"`hidden_size`", "-48"}},
      {"vocab_size", 1e18, {"`vocab_size`"}},
      {"num_hidden_layers", 0, {"`num_hidden_layers`"}},
      {"num_attention_heads", 0, {"`num_attention_heads`", "0"}},
      {"num_key_value_heads", 0, {"`num_key_value_heads`", "0"}},
      {"head_dim", 0, {"`head_dim`", "0"}},
      {"num_hidden_layers", 2.5, {"`num_hidden_layers`", "2.5"}},
      {"num_key_value_heads", 4, {"6 attention heads are not a multiple of 4"}},
      {"head_dim", 7, {"even head_dim"}},
      {"hidden_size", 50, {"hidden_size 50 is not a multiple of num_attention_heads 6"}},
      {"rms_norm_eps", 0, {"`rms_norm_eps` must be a number greater than 0"}},
      {"tie_word_embeddings", 1, {"`tie_word_embeddings` must be true or false"}},
      {"eos_token_id", json::array({1, "x"}), {"`eos_token_id` must be a token id or a list"}},
      {"hidden_act", "gelu", {"`hidden_act` \"gelu\" is not supported"}},
      {"quantization_config", {{"quant_method", "hqq"}}, {"quantised by \"hqq\""}},
      {"quantization_config",
       {{"quant_method", "gptq"}, {"bits", 3}},
       {"quantised by \"gptq\" to 3 bits; supported: 4", "use a checkpoint in 4 bits"}},
      {"quantization_config",
       {{"quant_method", "awq"}, {"w_bit", 8}},
       {"quantised by \"awq\" to 8 bits"}},
      {"quantization_config",
       {{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv_fast"}},
       {"\"awq\", and its `quantization_config.version` is \"gemv_fast\"; supported: gemm"}},
      {"quantization_config",
       {{"quant_method", "gptq"}, {"checkpoint_format", "marlin"}},
       {"`quantization_config.checkpoint_format` is \"marlin\"; supported: gptq, gptq_v2"}},
      {"quantization_config",
       {{"quant_method", "gptq"}, {"bits", 4}, {"dynamic", {{"+:.*down.*", {{"bits", 8}}}}}},
       {"`quantization_config.dynamic` gives 8 bits to the modules \"+:.*down.*\""}},
      {"quantization_config",
       {{"quant_method", "compressed-tensors"},
        {"format", "pack-quantized"},
        {"config_groups", {{"group_0", {{"weights", {{"num_bits", 2}}}}}}}},
       {"\"compressed-tensors\" to 2 bits; supported: 4"}},
      {"quantization_config",
       {{"quant_method", "compressed-tensors"},
        {"format", "pack-quantized"},
        {"config_groups", {{"g", {{"weights", {{"strategy", "tensor_group"}}}}}}}},
       {"`quantization_config.config_groups.g.weights.strategy` is \"tensor_group\""}},
      {"quantization_config",
       {{"quant_method", "compressed-tensors"},
        {"format", "pack-quantized"},
        {"transform_config", {{"config_groups", {{"u", 1}}}}}},
       {"it has a `quantization_config.transform_config` (rotations)"}},
      {"quantization_config", {{"bits", 4}}, {"quantised by \"unknown\""}},
      {"quantization_config", "nf4", {"`quantization_config` must be an object; it is \"nf4\""}},
      {"quantization_config",
       {{"quant_method", 7}},
       {"`quantization_config.quant_method` must be a string; it is 7"}},
      {"quantization_config",
       {{"quant_method", "bitsandbytes"}, {"load_in_8bit", "yes"}},
       {"`quantization_config.load_in_8bit` must be true or false; it is \"yes\""}},
      {"quantization_config",
       {{"quant_method", "compressed-tensors"}, {"format", 1}},
       {"`quantization_config.format` must be a string"}},
      {"quantization_config",
       {{"quant_method", "compressed-tensors"},
        {"format", "float-quantized"},
        {"config_groups", {{"group_0", {{"weights", {{"strategy", "group"}}}}}}}},
       {"FP8 scales use the strategy \"group\"", "use the unquantised checkpoint"}},
      {"quantization_config",
       {{"quant_method", "compressed-tensors"},
        {"format", "float-quantized"},
        {"config_groups",
         {{"group_0", {{"weights", {{"strategy", "block"}, {"block_structure", {64, 128}}}}}}}}},
       {"FP8 scales are of blocks of 64 rows and 128 columns; supported: 128 and 128"}},
      {"quantization_config",
       {{"quant_method", "fp8"}, {"weight_block_size", {128, 64}}},
       {"FP8 scales are of blocks of 128 rows and 64 columns"}},
      {"quantization_config",
       {{"quant_method", "fp8"}, {"weight_block_size", 128}},
       {"`quantization_config.weight_block_size` must be two sizes"}},
      {"quantization_config",
       {{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", 3}}}},
       {"`quantization_config.config_groups` must be an object of objects"}},
      {"rope_scaling",
       {{"type", "spiral"}},
       {"RoPE scaling \"spiral\"", "default, linear, dynamic, yarn, llama3, longrope"}},
      {"rope_scaling",
       {{"type", "longrope"}, {"short_factor", {1, 2}}},
       {"`rope_scaling.short_factor` must be a list of 4 numbers", "it is [1,2]"}},
      {"rope_scaling", {{"type", "linear"}}, {"`rope_scaling.factor` is missing"}},
      {"rope_scaling",
       {{"type", "llama3"}, {"factor", 8}},
       {"`rope_scaling.low_freq_factor` is missing"}},
      {"rope_scaling", 3, {"rope_scaling"}},
      {"rope_theta", 0.5, {"RoPE base must be above 1"}},
      {"partial_rotary_factor", 0.5, {"`partial_rotary_factor` 0.5 is not supported"}},
  };
  for (const BadConfig& bad : cases) {
    SCOPED_TRACE(std::string(bad.key) + " = " + bad.value.dump());
    json config = small_config();
    config[bad.key] = bad.value;
    for (const std::string& part : bad.parts)
      expect_error([&] { parse(config); }, {part, "at   m/config.json"});
  }
  expect_error([] { parse(json::array()); }, {"not a JSON object"});
}

json config_of(const char* family, const json& changes) {
  json config = small_config();
  config["model_type"] = family;
  config.update(changes);
  return config;
}

std::vector<int64_t> windows_of(const ArchSpec& arch) {
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : arch.layers) windows.push_back(layer.window);
  return windows;
}
using Windows = std::vector<int64_t>;

// The text part of google/gemma-3-4b-it's config.json says no more than this.
TEST(FamilyDefaults, AreThoseOfTransformers) {
  const ArchSpec arch = parse({{"model_type", "gemma3_text"},
                               {"hidden_size", 2560},
                               {"intermediate_size", 10240},
                               {"num_hidden_layers", 34},
                               {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                               {"sliding_window", 1024}});
  EXPECT_EQ(arch.vocab_size, 262208);
  EXPECT_EQ(arch.num_heads, 8);
  EXPECT_EQ(arch.num_kv_heads, 4);
  EXPECT_EQ(arch.head_dim, 256);
  EXPECT_TRUE(arch.tie_word_embeddings);
  EXPECT_EQ(arch.layers[4].window, 1024);
  EXPECT_EQ(arch.layers[4].rope, 1);
  EXPECT_EQ(arch.layers[5].window, 0);
  EXPECT_EQ(arch.layers[5].rope, 0);
  EXPECT_EQ(arch.ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(arch.ropes[0].factor, 8.0);
  EXPECT_EQ(arch.ropes[0].theta, 1e6);
  EXPECT_EQ(arch.ropes[1].type, RopeType::kDefault);
  EXPECT_EQ(arch.ropes[1].theta, 1e4);
  EXPECT_EQ(parse(config_of("qwen3", json::object())).head_dim, 128);
  EXPECT_EQ(parse(config_of("smollm3", json::object())).ropes[0].theta, 2e6);
  EXPECT_EQ(windows_of(parse(config_of("mistral", json::object()))), (Windows{4096, 4096}));
}

TEST(FamilyKeys, WindowsAreReadAsTransformersReadsThem) {
  EXPECT_EQ(windows_of(parse(config_of("mistral", {{"sliding_window", nullptr}}))),
            (Windows{0, 0}));
  const json qwen = {{"sliding_window", 7}, {"max_window_layers", 1}};
  EXPECT_EQ(windows_of(parse(config_of("qwen2", qwen))), (Windows{0, 0}));
  json sliding = qwen;
  sliding["use_sliding_window"] = true;
  EXPECT_EQ(windows_of(parse(config_of("qwen2", sliding))), (Windows{0, 7}));
  sliding["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(windows_of(parse(config_of("qwen3", sliding))), (Windows{7, 0}));
  EXPECT_EQ(windows_of(parse(config_of("gemma2", {{"sliding_window", 5}}))), (Windows{5, 0}));
  EXPECT_EQ(windows_of(parse(
                config_of("gemma3_text", {{"sliding_window", 5}, {"sliding_window_pattern", 2}}))),
            (Windows{5, 0}));
}

TEST(FamilyKeys, TheLoadBalancingLossIsAskedForByRouterLogits) {
  json config = small_config();
  config["model_type"] = "mixtral";
  config["router_aux_loss_coef"] = 0.02;
  EXPECT_FALSE(parse(config).mixture.aux_loss_coef.has_value());
  config["output_router_logits"] = true;
  EXPECT_EQ(parse(config).mixture.aux_loss_coef, 0.02);
  EXPECT_EQ(parse(parse(config).to_hf_config()).mixture.aux_loss_coef, 0.02);
  config["router_aux_loss_coef"] = 0;
  EXPECT_EQ(parse(config).mixture.aux_loss_coef, 0);
  EXPECT_EQ(parse(parse(config).to_hf_config()).mixture.aux_loss_coef, 0);
  config.erase("router_aux_loss_coef");
  EXPECT_EQ(parse(config).mixture.aux_loss_coef, 0.001);
  config["router_aux_loss_coef"] = -1;
  expect_error([&] { parse(config); }, {"router_aux_loss_coef"});
}

TEST(FamilyKeys, NamesWhatIsWrong) {
  const std::vector<std::pair<json, std::string>> cases = {
      {config_of("gemma2", {{"layer_types", {"full_attention"}}}),
       "`layer_types` must be a list of 2 types, one per layer"},
      {config_of("gemma2", {{"layer_types", {"full_attention", "chunked_attention"}}}),
       "`layer_types` must be \"full_attention\" or \"sliding_attention\""},
      {config_of("gemma2", {{"sliding_window", nullptr}}), "`sliding_window` is missing"},
      {config_of("gemma3_text", {{"use_bidirectional_attention", true}}),
       "`use_bidirectional_attention` is not supported"},
      {config_of("gemma2", {{"hidden_activation", "relu"}}),
       "`hidden_activation` \"relu\" is not supported"},
      {config_of("smollm3", {{"no_rope_layers", {1}}}),
       "`no_rope_layers` must be a list of 2 numbers"},
      {config_of("phi3", {{"partial_rotary_factor", 1.5}}),
       "`partial_rotary_factor` 1.5 is not supported"},
      {config_of("phi3", {{"rope_scaling", {{"type", "su"}, {"short_factor", {1, 1, 1, -1}}}}}),
       "`rope_scaling.short_factor` must be a list of 4 numbers greater than 0"},
  };
  for (const auto& [config, message] : cases)
    expect_error([&, &bad = config] { parse(bad); }, {message, "at   m/config.json"});
}

TEST(ToHfConfig, ComesBackEqual) {
  std::vector<json> scalings = {
      nullptr,
      {{"rope_type", "linear"}, {"factor", 4.0}},
      {{"rope_type", "dynamic"}, {"factor", 2.0}},
      {{"rope_type", "llama3"},
       {"factor", 8.0},
       {"low_freq_factor", 1.0},
       {"high_freq_factor", 4.0},
       {"original_max_position_embeddings", 64}},
      {{"rope_type", "yarn"},
       {"factor", 8.0},
       {"beta_fast", 16.0},
       {"beta_slow", 2.0},
       {"mscale", 1.0},
       {"mscale_all_dim", 0.5},
       {"attention_factor", 1.1},
       {"truncate", false},
       {"original_max_position_embeddings", 64}},
  };
  for (const json& scaling : scalings) {
    json config = small_config();
    config["rope_scaling"] = scaling;
    const ArchSpec arch = parse(config);
    const json written = arch.to_hf_config();
    EXPECT_EQ(written, parse(written).to_hf_config());
    EXPECT_EQ(written["rope_scaling"], scaling);
    EXPECT_EQ(written["eos_token_id"], config["eos_token_id"]);
    EXPECT_EQ(written["architectures"], json::array({"LlamaForCausalLM"}));
  }
}

json small_meta() {
  return {{"general.architecture", "llama"},
          {"llama.vocab_size", 128},
          {"llama.embedding_length", 48},
          {"llama.feed_forward_length", 96},
          {"llama.block_count", 2},
          {"llama.attention.head_count", 6},
          {"llama.attention.head_count_kv", 2},
          {"llama.context_length", 512},
          {"llama.attention.layer_norm_rms_epsilon", 1e-5},
          {"llama.rope.freq_base", 5000.0},
          {"llama.rope.dimension_count", 8},
          {"tokenizer.ggml.bos_token_id", 1},
          {"tokenizer.ggml.eos_token_id", 2},
          {"tokenizer.ggml.eot_token_id", 7}};
}

TEST(FromGguf, ReadsEveryField) {
  const ArchSpec arch = ArchSpec::from_gguf(small_meta(), "m.gguf");
  json expected = small_config();
  expected["rope_theta"] = 5000.0;
  ArchSpec same = parse(expected);
  same.tie_word_embeddings = false;
  EXPECT_EQ(arch.to_hf_config(), same.to_hf_config());
}

TEST(FromGguf, ReadsRopeScaling) {
  json meta = small_meta();
  meta["llama.rope.scaling.type"] = "linear";
  meta["llama.rope.scaling.factor"] = 4.0;
  EXPECT_EQ(ArchSpec::from_gguf(meta, "m.gguf").ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(ArchSpec::from_gguf(meta, "m.gguf").ropes[0].factor, 4.0);
  meta["llama.rope.scaling.type"] = "yarn";
  meta["llama.rope.scaling.original_context_length"] = 128;
  const ArchSpec yarn = ArchSpec::from_gguf(meta, "m.gguf");
  EXPECT_EQ(yarn.ropes[0].type, RopeType::kYarn);
  EXPECT_EQ(yarn.ropes[0].original_max_position_embeddings, 128);
  EXPECT_FALSE(yarn.ropes[0].attention_factor.has_value());
  json old = small_meta();
  old["llama.rope.scale_linear"] = 2.0;
  EXPECT_EQ(ArchSpec::from_gguf(old, "m.gguf").ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(ArchSpec::from_gguf(old, "m.gguf").ropes[0].factor, 2.0);
}

json meta_of(const std::string& architecture, const json& changes) {
  const json llama = small_meta();
  json meta = json::object();
  const std::string prefix = "llama.";
  for (const auto& [key, value] : llama.items()) {
    const bool own = key.starts_with(prefix);
    meta[own ? architecture + "." + key.substr(prefix.size()) : key] = value;
  }
  meta["general.architecture"] = architecture;
  for (const auto& [key, value] : changes.items()) meta[architecture + "." + key] = value;
  return meta;
}

ArchSpec parse_gguf(const std::string& architecture, const json& changes) {
  return ArchSpec::from_gguf(meta_of(architecture, changes), "m.gguf");
}

TEST(FromGguf, OnlyGraniteScalesNoiseWithTheEmbedding) {
  EXPECT_TRUE(parse(config_of("granite", json::object())).scales_embedding_noise);
  EXPECT_TRUE(parse_gguf("granite", json::object()).scales_embedding_noise);
  for (const char* family : {"llama", "gemma2", "gemma3_text"})
    EXPECT_FALSE(parse(config_of(family, json::object())).scales_embedding_noise) << family;
}

TEST(FromGguf, KnowsWhatMetadataDoesNotSay) {
  const ArchSpec gemma2 = parse_gguf("gemma2", {{"attn_logit_softcapping", 50.0}});
  EXPECT_EQ(windows_of(gemma2), (Windows{4096, 0}));
  EXPECT_EQ(gemma2.attention_softcap, 50.0);
  EXPECT_DOUBLE_EQ(gemma2.attention_scale, 1 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(gemma2.embedding_scale, std::sqrt(48.0));
  EXPECT_EQ(gemma2.activation, Activation::kGeluTanh);
  // The 27B models divide by hidden_size / heads, whatever their head_dim.
  const json large = {{"block_count", 62},
                      {"attention.key_length", 16},
                      {"attention.sliding_window", 9},
                      {"rope.dimension_count", 16}};
  const ArchSpec gemma3 = parse_gguf("gemma3", large);
  EXPECT_DOUBLE_EQ(gemma3.attention_scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(gemma3.layers[4].window, 9);
  EXPECT_EQ(gemma3.layers[5].window, 0);
  EXPECT_EQ(gemma3.ropes[1].theta, 10000.0);
  EXPECT_EQ(parse_gguf("olmo2", {{"attention.sliding_window", 5}}).family, "olmo3");
  EXPECT_EQ(parse_gguf("olmo2", json::object()).family, "olmo2");
  EXPECT_EQ(parse_gguf("smollm3", {{"block_count", 4}}).layers[3].rope, -1);
  EXPECT_EQ(parse_gguf("phi3", {{"rope.dimension_count", 6}}).ropes[0].rotary_dim, 6);
}

TEST(FromGguf, ReadsWhichLayersHaveAWindow) {
  const char* pattern = "attention.sliding_window_pattern";
  const json list = json::array({false, true, true});
  const auto read = [&](const char* architecture, const json& value) {
    json changes = {{"block_count", 3}, {"attention.sliding_window", 7}};
    if (!value.is_null()) changes[pattern] = value;
    if (architecture == std::string("gpt-oss"))
      changes.update(
          {{"expert_count", 4}, {"expert_used_count", 2}, {"expert_feed_forward_length", 8}});
    return parse_gguf(architecture, changes);
  };
  EXPECT_EQ(windows_of(read("gemma2", nullptr)), (Windows{7, 0, 7}));
  EXPECT_EQ(windows_of(read("gpt-oss", nullptr)), (Windows{7, 0, 7}));
  EXPECT_EQ(windows_of(read("gemma3", nullptr)), (Windows{7, 7, 7}));
  EXPECT_EQ(windows_of(read("olmo2", nullptr)), (Windows{7, 7, 7}));
  for (const char* architecture : {"gemma2", "gemma3", "olmo2", "gpt-oss"}) {
    EXPECT_EQ(windows_of(read(architecture, list)), (Windows{0, 7, 7})) << architecture;
    EXPECT_EQ(windows_of(read(architecture, 1)), (Windows{0, 0, 0})) << architecture;
    EXPECT_EQ(windows_of(read(architecture, 0)), (Windows{7, 7, 7})) << architecture;
    expect_error([&] { read(architecture, json::array({true})); }, {"a list of 3 booleans"});
    expect_error(
        [&] {
          read(architecture, json::array({1, 2, 3}));
        },
        {"a list of true or false values"});
  }
  EXPECT_EQ(read("gemma3", list).layers[0].rope, 0);
  EXPECT_EQ(read("gemma3", list).layers[1].rope, 1);
  EXPECT_EQ(windows_of(parse_gguf("gemma3", json::object())), (Windows{0, 0}));  // without the key
}

TEST(FromGguf, ReadsWhatYarnAndWindowsTurnBy) {
  const ArchSpec arch = parse_gguf("olmo2", {{"attention.sliding_window", 7},
                                             {"rope.freq_base_swa", 300.0},
                                             {"rope.scaling.type", "yarn"},
                                             {"rope.scaling.factor", 4.0},
                                             {"rope.scaling.yarn_attn_factor", 1.25}});
  EXPECT_EQ(arch.ropes[0].attention_factor, 1.25);
  EXPECT_EQ(arch.ropes[1].type, RopeType::kDefault);
  EXPECT_EQ(arch.ropes[1].theta, 300.0);
}

TEST(FromGguf, RefusesAGraniteThatTurnsNothing) {
  EXPECT_EQ(parse_gguf("granite", {{"rope.scaling.finetuned", true}}).family, "granite");
  expect_error(
      [] {
        parse_gguf("granite", {{"rope.scaling.finetuned", false}});
      },
      {"a Granite model without position embeddings is not supported", "m.gguf"});
}

TEST(FromGguf, LeavesOutLayersOfFurtherTokens) {
  const json delta_net = {{"block_count", 4},
                          {"nextn_predict_layers", 1},
                          {"ssm.group_count", 2},
                          {"ssm.time_step_rank", 4},
                          {"ssm.state_size", 6},
                          {"ssm.inner_size", 20},
                          {"ssm.conv_kernel", 4},
                          {"attention.head_count_kv", json::array({2, 2, 2, 1})},
                          {"full_attention_interval", 4},
                          {"attention.recurrent_layers", json::array({true, false, true, false})}};
  const ArchSpec arch = parse_gguf("qwen35", delta_net);
  EXPECT_EQ(arch.num_layers, 3);
  std::vector<Mixer> mixers;
  for (const LayerSpec& layer : arch.layers) mixers.push_back(layer.mixer);
  EXPECT_EQ(mixers, (std::vector{Mixer::kDeltaNet, Mixer::kAttention, Mixer::kDeltaNet}));
  json old = delta_net;  // without the list the interval counts
  old.erase("attention.recurrent_layers");
  EXPECT_EQ(parse_gguf("qwen35", old).layers[1].mixer, Mixer::kDeltaNet);
  json all = delta_net;
  all["nextn_predict_layers"] = 4;
  expect_error([&] { parse_gguf("qwen35", all); },
               {"`qwen35.nextn_predict_layers` must be an integer from 0 to 3"});
}

TEST(LongRopeFactors, AreTakenOrRefused) {
  RopeSpec rope;
  rope.rotary_dim = 4;
  rope.max_position_embeddings = 64;
  const std::vector<float> factors = {1.0F, 2.0F}, bad = {1.0F, -2.0F};
  expect_error([&] { set_longrope_factors(rope, factors, factors, "m.gguf"); },
               {"no rope.scaling.original_context_length"});
  rope.original_max_position_embeddings = 16;
  expect_error([&] { set_longrope_factors(rope, factors, bad, "m.gguf"); },
               {"must have 2 positive numbers each", "m.gguf"});
  expect_error([&] { set_longrope_factors(rope, {}, factors, "m.gguf"); },
               {"must have 2 positive numbers each"});
  set_longrope_factors(rope, factors, factors, "m.gguf");
  EXPECT_EQ(rope.type, RopeType::kLongRope);
  EXPECT_EQ(rope.factor, 4.0);
}

TEST(FromGguf, NamesWhatIsWrong) {
  const std::vector<BadConfig> cases = {
      {"general.architecture",
       "mamba",
       {"\"mamba\" is not supported",
        "llama, qwen2, qwen2vl, qwen3, qwen3vl, gemma2, gemma3, phi3, smollm3"}},
      {"general.architecture", nullptr, {"`general.architecture` is missing"}},
      {"llama.block_count", nullptr, {"`llama.block_count` is missing"}},
      {"llama.attention.head_count_kv",
       "two",
       {"`llama.attention.head_count_kv` must be an integer"}},
      {"llama.attention.head_count_kv",
       json::array({2, 4, 2}),
       {"`llama.attention.head_count_kv` must be a number, or a list of"}},
      {"llama.attention.head_count", 0, {"`llama.attention.head_count`", "0"}},
      {"llama.expert_count", 8, {"llama.expert_used_count", "is missing"}},
      {"llama.rope.dimension_count",
       4,
       {"`llama.rope.dimension_count` 4 differs from the head size 8"}},
      {"llama.attention.value_length", 16, {"`llama.attention.value_length` 16"}},
      {"llama.rope.scaling.type", "longrope", {"RoPE scaling \"longrope\""}},
      {"tokenizer.ggml.eos_token_id", -1, {"`tokenizer.ggml.eos_token_id`"}},
  };
  for (const BadConfig& bad : cases) {
    SCOPED_TRACE(bad.key);
    json meta = small_meta();
    meta[bad.key] = bad.value;
    for (const std::string& part : bad.parts) {
      expect_error([&] { ArchSpec::from_gguf(meta, "m.gguf"); }, {part, "at   m.gguf"});
    }
  }
}

TEST(TensorSpecs, CountAndShapes) {
  json config = small_config();
  config["head_dim"] = 16;
  ArchSpec arch = parse(config);
  const std::vector<TensorSpec> tied = tensor_specs(arch);
  EXPECT_EQ(tied.size(), 2U + 2U * 9U);
  EXPECT_EQ(tied.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(tied.back().name, "model.norm.weight");
  EXPECT_EQ(tied[1].name, "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(tied[2].name, "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(tied[3].name, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(tied[3].shape, (std::vector<int64_t>{96, 48}));
  EXPECT_EQ(tied[4].shape, (std::vector<int64_t>{32, 48}));
  EXPECT_EQ(tied[6].shape, (std::vector<int64_t>{48, 96}));
  EXPECT_EQ(tied[10].layer, 1);
  EXPECT_EQ(tied[3].numel(), 96 * 48);
  arch.tie_word_embeddings = false;
  arch.qkv_bias = arch.o_bias = arch.mlp_bias = true;
  const std::vector<TensorSpec> full = tensor_specs(arch);
  EXPECT_EQ(full.size(), 3U + 2U * 16U);
  EXPECT_EQ(full.back().name, "lm_head.weight");
  EXPECT_EQ(full.back().role, TensorRole::kHead);
}

}  // namespace
}  // namespace sftrun::spec
