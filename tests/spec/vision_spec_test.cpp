#include "sftrun/spec/vision_spec.h"

#include <gtest/gtest.h>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/vision_tensors.h"
#include "support/expect_error.h"

/// What a whole model's config.json says of images, and what is refused in it.
namespace sftrun::spec {
namespace {

using nlohmann::json;
using test::expect_error;

json text_config(const char* model_type) {
  return {{"model_type", model_type},
          {"vocab_size", 64},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"head_dim", 8},
          {"num_key_value_heads", 1},
          {"max_position_embeddings", 64}};
}

json square_tower(const char* model_type) {
  return {{"model_type", model_type}, {"hidden_size", 16},        {"intermediate_size", 24},
          {"num_hidden_layers", 3},   {"num_attention_heads", 2}, {"image_size", 16},
          {"patch_size", 4}};
}

json qwen_tower() {
  return {{"depth", 3},     {"hidden_size", 16},     {"intermediate_size", 24},
          {"num_heads", 2}, {"out_hidden_size", 16}, {"patch_size", 4}};
}

json whole(const char* model_type, const json& text, const json& vision) {
  return {{"model_type", model_type}, {"text_config", text}, {"vision_config", vision}};
}

json gemma3() {
  json config = whole("gemma3", text_config("gemma3_text"), square_tower("siglip_vision_model"));
  config["mm_tokens_per_image"] = 4;
  return config;
}

json gemma4() {
  json vision = square_tower("gemma4_vision");
  vision.update({{"head_dim", 8}, {"num_key_value_heads", 2}});
  json text = text_config("gemma4_text");
  text["vocab_size_per_layer_input"] = 64;
  return whole("gemma4", text, vision);
}

json qwen2_5_vl() {
  json text = text_config("qwen2_5_vl_text");
  text["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 1, 1}}};
  json vision = qwen_tower();
  vision["window_size"] = 24;
  return whole("qwen2_5_vl", text, vision);
}

json qwen3_vl() {
  json vision = qwen_tower();
  vision.update({{"num_position_embeddings", 16}, {"deepstack_visual_indexes", {0, 2}}});
  return whole("qwen3_vl", text_config("qwen3_vl_text"), vision);
}

json smolvlm() {
  return whole("smolvlm", text_config("llama"), square_tower("smolvlm_vision"));
}

json llava() {
  return whole("llava", text_config("llama"), square_tower("clip_vision_model"));
}

json internvl() {
  return whole("internvl", text_config("qwen3"), square_tower("internvl_vision"));
}

json mistral3() {
  return whole("mistral3", text_config("mistral"), square_tower("pixtral"));
}

/// @param pointer of JSON: "/vision_config/hidden_act"
json changed(json config, const char* pointer, const json& value) {
  config[json::json_pointer(pointer)] = value;
  return config;
}

ArchSpec parse_whole(const json& config) {
  return ArchSpec::from_hf_config(config, "m/config.json");
}

VisionSpec vision_of(const json& config) {
  const ArchSpec arch = parse_whole(config);
  EXPECT_TRUE(arch.vision.has_value());
  return arch.vision.value();
}

TEST(WholeModel, NamesItselfAndItsTextModel) {
  const ArchSpec arch = parse_whole(smolvlm());
  EXPECT_EQ(arch.family, "llama");
  EXPECT_EQ(arch.whole_model, "smolvlm");
  EXPECT_EQ(arch.prefix, "model.text_model.");
  EXPECT_TRUE(arch.is_text_part());
  EXPECT_EQ(arch.vision->model_class, "SmolVLMForConditionalGeneration");
  EXPECT_EQ(parse_whole(text_config("llama")).whole_model, "");
  EXPECT_FALSE(parse_whole(text_config("llama")).vision.has_value());
}

TEST(WholeModel, TextModelIsTheOneThatTextConfigNames) {
  EXPECT_EQ(parse_whole(changed(llava(), "/text_config/model_type", "qwen2")).family, "qwen2");
  json unnamed = llava();
  unnamed["text_config"].erase("model_type");
  EXPECT_EQ(parse_whole(unnamed).family, "llama");
  EXPECT_EQ(parse_whole(changed(qwen3_vl(), "/text_config/model_type", "llama")).family,
            "qwen3");  // its class reads no other
  expect_error([] { parse_whole(changed(internvl(), "/text_config/model_type", "mamba")); },
               {"\"mamba\" is not supported", "supported families"});
}

TEST(WholeModel, ReadsTheTextModelsKeysBesideTheTower) {
  json flat = text_config("qwen2_5_vl");
  flat["vision_config"] = qwen2_5_vl()["vision_config"];
  flat["rope_scaling"] = qwen2_5_vl()["text_config"]["rope_scaling"];
  flat["tie_word_embeddings"] = true;
  const ArchSpec arch = parse_whole(flat), nested = parse_whole(qwen2_5_vl());
  EXPECT_EQ(arch.family, "qwen2");
  EXPECT_TRUE(arch.tie_word_embeddings);
  EXPECT_FALSE(nested.tie_word_embeddings);
  EXPECT_EQ(arch.ropes[0].sections, nested.ropes[0].sections);
  EXPECT_EQ(tensor_specs(arch).size() + 1, tensor_specs(nested).size());
}

TEST(WholeModel, TheWholeModelsKeyTiesTheHead) {
  const auto tied = [](json config, const json& whole, const json& text) {
    config["tie_word_embeddings"] = whole;
    config["text_config"]["tie_word_embeddings"] = text;
    return parse_whole(config).tie_word_embeddings;
  };
  EXPECT_TRUE(tied(qwen3_vl(), true, false));
  EXPECT_FALSE(tied(qwen3_vl(), false, true));
  EXPECT_TRUE(tied(qwen3_vl(), nullptr, true));
  EXPECT_TRUE(tied(llava(), false, true));  // its class looks at both
  EXPECT_TRUE(tied(qwen2_5_vl(), false, true));
  EXPECT_TRUE(tied(mistral3(), nullptr, nullptr));
  EXPECT_FALSE(tied(smolvlm(), nullptr, nullptr));
  EXPECT_FALSE(tied(gemma3(), false, nullptr));
}

TEST(WholeModel, PositionsHaveThreeAxes) {
  const RopeSpec blocks = parse_whole(qwen2_5_vl()).ropes[0],
                 alternating = parse_whole(qwen3_vl()).ropes[0];
  EXPECT_EQ(blocks.type, RopeType::kDefault);
  EXPECT_EQ(blocks.sections, (std::vector<int64_t>{2, 1, 1}));
  EXPECT_FALSE(blocks.sections_alternate);
  EXPECT_EQ(alternating.sections, (std::vector<int64_t>{24, 20, 20}));
  EXPECT_TRUE(alternating.sections_alternate);
  const json said = {{"mrope_section", {2, 1, 1}}, {"mrope_interleaved", false}};
  EXPECT_TRUE(parse_whole(changed(qwen3_vl(), "/text_config/rope_parameters", said))
                  .ropes[0]
                  .sections_alternate);
  EXPECT_EQ(
      parse_whole(changed(qwen3_vl(), "/text_config/rope_parameters", said)).ropes[0].sections,
      (std::vector<int64_t>{2, 1, 1}));
  EXPECT_TRUE(parse_whole(llava()).ropes[0].sections.empty());
}

TEST(WholeModel, ImageTokenHasTwoNames) {
  EXPECT_EQ(vision_of(llava()).image_token_id, 32000);
  EXPECT_EQ(vision_of(changed(llava(), "/image_token_index", 7)).image_token_id, 7);
  EXPECT_EQ(vision_of(changed(llava(), "/image_token_id", 8)).image_token_id, 8);
  json both = changed(llava(), "/image_token_id", 8);
  both["image_token_index"] = 7;
  expect_error([&] { parse_whole(both); }, {"`image_token_id` 8 differs from `image_token_index` 7",
                                            "m/config.json", "keep the one"});
}

TEST(WholeModel, Gemma4MayHaveNoTower) {
  const ArchSpec arch = parse_whole(changed(gemma4(), "/vision_config", nullptr));
  EXPECT_FALSE(arch.vision.has_value());
  EXPECT_EQ(arch.whole_model, "gemma4");
  EXPECT_EQ(part_of(arch, "model.language_model.norm.weight"), ModelPart::kLanguage);
  EXPECT_EQ(part_of(arch, "model.vision_tower.std_bias"), std::nullopt);
  expect_error([] { parse_whole(changed(gemma3(), "/vision_config", nullptr)); },
               {"`vision_config` is missing"});
}

TEST(VisionSpec, Gemma3TakesMeansOfPatches) {
  const VisionSpec vision = vision_of(gemma3());
  EXPECT_EQ(vision.merger.merge, PatchMerge::kMean);
  EXPECT_EQ(vision.merger.side, 2);
  EXPECT_TRUE(vision.merger.is_transposed_parameter);
  EXPECT_EQ(vision.merger.after.kind, TowerNormKind::kRmsAddsOne);
  EXPECT_EQ(vision.both_ways, BothWays::kEveryLayer);
  EXPECT_EQ(vision.position_rows, 16);
  EXPECT_EQ(vision.embedded_as, -1);
}

TEST(VisionSpec, Gemma4FollowsTheTextsRules) {
  const VisionSpec vision = vision_of(gemma4());
  EXPECT_EQ(vision.both_ways, BothWays::kNever);
  EXPECT_EQ(vision.embedded_as, 0);
  EXPECT_EQ(vision.attention_scale, 1);
  EXPECT_EQ(vision.patches.order, PatchOrder::kChannelsLast);
  EXPECT_EQ(vision.layer.value.kind, TowerNormKind::kRmsPlain);
  EXPECT_EQ(vision.image_size, 0);
  EXPECT_FALSE(vision.layer.output.clamps);
  EXPECT_EQ(
      vision_of(changed(gemma4(), "/text_config/use_bidirectional_attention", "vision")).both_ways,
      BothWays::kWindowedLayers);
  EXPECT_EQ(vision_of(changed(gemma4(), "/text_config/pad_token_id", 3)).embedded_as, 3);
  const VisionSpec clamped =
      vision_of(changed(gemma4(), "/vision_config/use_clipped_linears", true));
  EXPECT_EQ(clamped.layer.output.bounds, "self_attn.o_proj");
  const VisionSpec standardized = vision_of(changed(gemma4(), "/vision_config/standardize", true));
  EXPECT_EQ(standardized.merger.std_scale, "model.vision_tower.std_scale");
}

TEST(VisionSpec, Qwen25HasWindows) {
  const VisionSpec vision =
      vision_of(changed(qwen2_5_vl(), "/vision_config/fullatt_block_indexes", {7, 1}));
  EXPECT_EQ(vision.window_side, 3);
  EXPECT_EQ(vision.full_layers, (std::vector<int64_t>{1}));
  EXPECT_EQ(vision.patches.values(), 3 * 2 * 4 * 4);
  EXPECT_EQ(vision.rope, TowerRope::kHalves);
  EXPECT_EQ(vision_of(changed(qwen2_5_vl(), "/vision_config/rope_parameters",
                              {{"rope_theta", 500.0}, {"rope_type", "axial"}}))
                .rope_theta,
            500);
}

TEST(VisionSpec, Qwen3HasDeepStackAndQwen35HasNone) {
  const VisionSpec vision = vision_of(qwen3_vl());
  EXPECT_EQ(vision.deepstack_layers, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(vision.deepstack.at(1).after.size, 64);
  EXPECT_EQ(vision.deepstack.at(1).steps[0].linear.module,
            "model.visual.deepstack_merger_list.1.linear_fc1");
  EXPECT_EQ(vision.merger.before.size, 16);
  json text = text_config("qwen3_5_text");
  const VisionSpec of_3_5 = vision_of(whole("qwen3_5", text, qwen3_vl()["vision_config"]));
  EXPECT_TRUE(of_3_5.deepstack.empty());
  EXPECT_EQ(of_3_5.image_token_id, 248056);
}

TEST(VisionSpec, LlavaUsesTheOutputOfALayer) {
  const VisionSpec vision = vision_of(llava());
  EXPECT_EQ(vision.num_used_layers, 2);
  EXPECT_EQ(vision.num_layers, 3);
  EXPECT_FALSE(vision.uses_post_norm);
  EXPECT_TRUE(vision.drops_class_token);
  EXPECT_EQ(vision.position_rows, 17);
  EXPECT_EQ(vision_of(changed(llava(), "/vision_feature_layer", 1)).num_used_layers, 1);
  EXPECT_EQ(vision_of(changed(llava(), "/vision_feature_layer", -1)).num_used_layers, 3);
  EXPECT_FALSE(
      vision_of(changed(llava(), "/vision_feature_select_strategy", "full")).drops_class_token);
  EXPECT_FALSE(
      vision_of(changed(llava(), "/multimodal_projector_bias", false)).merger.steps[1].linear.bias);
}

TEST(VisionSpec, LlavaNextHasCanvases) {
  json config = llava();
  config["model_type"] = "llava_next";
  config["image_grid_pinpoints"] = {{16, 32}, {48, 16}};
  const VisionSpec vision = vision_of(config);
  EXPECT_EQ(vision.newline, "model.image_newline");
  EXPECT_EQ(vision.canvases.at(1), (std::array<int64_t, 2>{48, 16}));
  expect_error(
      [&] {
        parse_whole(changed(config, "/image_grid_pinpoints", {{16, 24}}));
      },
      {"`image_grid_pinpoints` has a side of 24 pixels, which tiles of 16 do not fill",
       "name multiples"});
  expect_error(
      [&] {
        parse_whole(changed(config, "/image_grid_pinpoints", {{16, 32, 48}}));
      },
      {"`image_grid_pinpoints` must be a list of pairs"});
  expect_error([&] { parse_whole(changed(config, "/vision_feature_select_strategy", "full")); },
               {"LLaVA-NeXT's tiles are put together without class tokens",
                "set `vision_feature_select_strategy` to \"default\""});
  json pixtral = changed(config, "/vision_config/model_type", "pixtral");
  pixtral["vision_feature_select_strategy"] = "full";
  expect_error([&] { parse_whole(pixtral); }, {"\"pixtral\" is not supported in llava_next",
                                               "clip_vision_model and siglip_vision_model"});
}

TEST(VisionSpec, PoolingHeadOfSiglipIsUnused) {
  json config = changed(llava(), "/vision_config/model_type", "siglip_vision_model");
  config["vision_feature_select_strategy"] = "full";
  EXPECT_EQ(vision_of(config).unused.back(), "model.vision_tower.head.");
  EXPECT_EQ(vision_of(changed(config, "/vision_config/vision_use_head", false)).unused.size(), 1U);
}

TEST(VisionSpec, InternVlMayHaveANormAfterItsTower) {
  EXPECT_FALSE(vision_of(internvl()).post_norm.exists());
  const json normed = changed(internvl(), "/vision_config/use_mean_pooling", false);
  EXPECT_TRUE(vision_of(normed).uses_post_norm);
  EXPECT_FALSE(vision_of(changed(normed, "/vision_feature_layer", -2)).uses_post_norm);
  EXPECT_FALSE(vision_of(changed(normed, "/vision_feature_layer", 3)).uses_post_norm);
  EXPECT_EQ(
      vision_of(changed(internvl(), "/vision_config/norm_type", "rms_norm")).layer.mlp_in.kind,
      TowerNormKind::kRms);
  EXPECT_EQ(vision_of(changed(internvl(), "/vision_config/use_qk_norm", true)).layer.key.size, 16);
  EXPECT_EQ(vision_of(changed(internvl(), "/vision_config/use_absolute_position_embeddings", false))
                .positions,
            TowerPositions::kNone);
  EXPECT_EQ(vision_of(changed(internvl(), "/downsample_ratio", 0.25)).merger.side, 4);
}

TEST(VisionSpec, Mistral3NormsAsItsTextModel) {
  const VisionSpec vision = vision_of(changed(mistral3(), "/text_config/rms_norm_eps", 1e-3));
  EXPECT_EQ(vision.merger.before.eps, 1e-3);
  EXPECT_EQ(vision.merger.merge, PatchMerge::kConcatChannelsFirst);
  EXPECT_EQ(vision.merger.steps.size(), 3U);
  EXPECT_EQ(vision_of(changed(mistral3(), "/vision_config/rope_theta", 77.0)).rope_theta, 77);
  EXPECT_EQ(vision.rope, TowerRope::kAlternating);
}

struct BadVision {
  json config;
  const char* key;  ///< a pointer of JSON
  json value;
  std::vector<std::string> parts;
};

class VisionRefusals : public ::testing::TestWithParam<BadVision> {};

TEST_P(VisionRefusals, NameWhatIsWrong) {
  const BadVision& bad = GetParam();
  EXPECT_NO_THROW(parse_whole(bad.config));
  const std::string text =
      test::error_of([&] { parse_whole(changed(bad.config, bad.key, bad.value)); });
  EXPECT_NE(text.find("m/config.json"), std::string::npos) << text;
  for (const std::string& part : bad.parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
}

std::vector<BadVision> refusals_of_any_tower() {
  return {
      {llava(), "/vision_config", 3, {"`vision_config` must be an object; it is 3"}},
      {llava(), "/text_config", json::array(), {"`text_config` must be an object"}},
      {llava(), "/text_config", nullptr, {"`text_config` is missing"}},
      {llava(),
       "/vision_config/model_type",
       "timm_wrapper",
       {"\"timm_wrapper\" is not supported in llava", "clip_vision_model"}},
      {llava(),
       "/vision_config/hidden_act",
       "relu",
       {"`vision_config.hidden_act` \"relu\" is not supported", "\"quick_gelu\""}},
      {llava(),
       "/vision_config/attention_dropout",
       0.1,
       {"`vision_config.attention_dropout` 0.1 is not supported", "set it to 0"}},
      {llava(), "/vision_config/num_channels", 1, {"`vision_config.num_channels` must be 3"}},
      {llava(),
       "/vision_config/num_attention_heads",
       3,
       {"`vision_config.hidden_size` 16 is not a multiple of the tower's 3"}},
      {llava(),
       "/vision_config/image_size",
       {16, 32},
       {"`vision_config.image_size` must be", "equal sides of a square"}},
      {llava(),
       "/vision_config/image_size",
       3,
       {"`vision_config.image_size` 3 is smaller than a patch of 4"}},
      {llava(),
       "/vision_config/patch_size",
       "4",
       {"`vision_config.patch_size` must be an integer"}},
      {llava(),
       "/vision_config/layer_norm_eps",
       0,
       {"`vision_config.layer_norm_eps` must be a number greater than 0"}},
      {llava(), "/vision_config/num_hidden_layers", 0, {"`vision_config.num_hidden_layers`"}},
  };
}

std::vector<BadVision> refusals_of_families() {
  const json siglip = changed(changed(llava(), "/vision_config/model_type", "siglip_vision_model"),
                              "/vision_feature_select_strategy", "full");
  return {
      {llava(),
       "/vision_feature_layer",
       {-2, -1},
       {"a list of layers in `vision_feature_layer` is not supported", "one layer"}},
      {llava(),
       "/vision_feature_layer",
       4,
       {"`vision_feature_layer` must be an integer from -3 to 3"}},
      {llava(),
       "/vision_feature_layer",
       0,
       {"`vision_feature_layer` must be the output of a layer"}},
      {llava(),
       "/vision_feature_select_strategy",
       "cls",
       {"`vision_feature_select_strategy` must be \"default\" or \"full\""}},
      {siglip,
       "/vision_feature_select_strategy",
       "default",
       {"drops the first patch of a tower without a class token", "\"full\""}},
      {llava(),
       "/projector_hidden_act",
       "silu",
       {"`projector_hidden_act` must be \"gelu\"; it is \"silu\""}},
      {llava(), "/image_token_index", -1, {"`image_token_index`"}},
      {gemma3(),
       "/vision_config/model_type",
       "clip_vision_model",
       {"\"clip_vision_model\" is not supported in gemma3", "siglip_vision_model"}},
      {gemma3(), "/mm_tokens_per_image", 5, {"`mm_tokens_per_image` must be a square number"}},
      {gemma3(),
       "/mm_tokens_per_image",
       9,
       {"4 patches a side are not a multiple of 3 image tokens a side"}},
      {gemma3(),
       "/mm_tokens_per_image",
       25,
       {"`mm_tokens_per_image` must be an integer from 1 to 16"}},
      {gemma4(),
       "/vision_config/num_key_value_heads",
       1,
       {"`vision_config.num_key_value_heads` must be", "2; it is 1"}},
      {gemma4(),
       "/vision_config/head_dim",
       6,
       {"`vision_config.head_dim` must be a multiple of 4"}},
      {gemma4(),
       "/vision_config/hidden_activation",
       "selu",
       {"`vision_config.hidden_activation` \"selu\""}},
      {gemma4(),
       "/vision_config/attention_dropout",
       0.5,
       {"`vision_config.attention_dropout` 0.5"}},
      {gemma4(),
       "/text_config/pad_token_id",
       64,
       {"`text_config.pad_token_id` must be an integer from 0 to 63"}},
      {gemma4(),
       "/vision_config/rope_parameters",
       {{"rope_type", "yarn"}},
       {"`vision_config.rope_parameters.rope_type` \"yarn\"", "\"axial\""}},
      {qwen2_5_vl(),
       "/vision_config/out_hidden_size",
       24,
       {"`vision_config.out_hidden_size` 24 differs", "`hidden_size` 16"}},
      {qwen2_5_vl(), "/vision_config/in_channels", 4, {"`vision_config.in_channels` must be 3"}},
      {qwen2_5_vl(),
       "/vision_config/num_heads",
       8,
       {"heads have 2 channels", "do not divide by 4"}},
      {qwen2_5_vl(),
       "/vision_config/window_size",
       7,
       {"`vision_config.window_size` must be at least 8 pixels"}},
      {qwen2_5_vl(),
       "/vision_config/spatial_merge_size",
       0,
       {"`vision_config.spatial_merge_size`"}},
      {qwen2_5_vl(),
       "/vision_config/temporal_patch_size",
       {2, 2},
       {"`vision_config.temporal_patch_size` must be an integer"}},
      {qwen2_5_vl(),
       "/vision_config/fullatt_block_indexes",
       {-1},
       {"`vision_config.fullatt_block_indexes` must be"}},
      {qwen2_5_vl(),
       "/text_config/rope_scaling/mrope_section",
       {2, 2, 2},
       {"divides 6 frequencies into three parts; a head has 4", "half of"}},
      {qwen2_5_vl(),
       "/text_config/rope_scaling/mrope_section",
       {2, 2},
       {"`text_config.rope_scaling.mrope_section` must be a list of three"}},
      {qwen3_vl(),
       "/vision_config/num_position_embeddings",
       15,
       {"`vision_config.num_position_embeddings` must be a square number"}},
      {qwen3_vl(),
       "/vision_config/deepstack_visual_indexes",
       {2, 0},
       {"`vision_config.deepstack_visual_indexes` must be", "increasing"}},
      {qwen3_vl(), "/vision_config/deepstack_visual_indexes", {0, 3}, {"from 0 to 2"}},
      {qwen3_vl(),
       "/vision_config/deepstack_visual_indexes",
       {0, 1, 2},
       {"at most 2 layers, as many as the text model has"}},
      {smolvlm(), "/scale_factor", 3, {"4 patches a side are not a multiple of `scale_factor` 3"}},
      {smolvlm(), "/scale_factor", 5, {"`scale_factor` must be an integer from 1 to 4"}},
      {internvl(),
       "/vision_config/use_mask_token",
       true,
       {"`vision_config.use_mask_token` must be false"}},
      {internvl(), "/vision_config/norm_type", "batch_norm", {"`vision_config.norm_type` must be"}},
      {internvl(),
       "/vision_config/hidden_dropout_prob",
       0.1,
       {"`vision_config.hidden_dropout_prob` 0.1"}},
      {internvl(),
       "/vision_config/projection_dropout",
       0.1,
       {"`vision_config.projection_dropout` 0.1"}},
      {internvl(),
       "/downsample_ratio",
       0.3,
       {"`downsample_ratio` must be 1 divided by a divisor of 4"}},
      {internvl(),
       "/vision_feature_select_strategy",
       "full",
       {"`vision_feature_select_strategy` must be \"default\""}},
      {internvl(), "/vision_config/image_size", 3, {"`vision_config.image_size` must be at least"}},
      {mistral3(),
       "/vision_config/model_type",
       "siglip_vision_model",
       {"\"siglip_vision_model\" is not supported in mistral3", "pixtral"}},
      {mistral3(), "/vision_config/num_attention_heads", 8, {"heads have 2 channels"}},
      {mistral3(), "/spatial_merge_size", -1, {"`spatial_merge_size`"}},
      {mistral3(), "/vision_feature_layer", 9, {"`vision_feature_layer`"}},
      {mistral3(),
       "/vision_config/rope_parameters",
       {{"rope_type", "linear"}, {"factor", 2.0}},
       {"\"linear\" is not supported"}},
      {qwen3_vl(), "/quantization_config", {{"quant_method", "hqq"}}, {"quantised by \"hqq\""}},
  };
}

INSTANTIATE_TEST_SUITE_P(AnyTower, VisionRefusals, ::testing::ValuesIn(refusals_of_any_tower()));
INSTANTIATE_TEST_SUITE_P(Families, VisionRefusals, ::testing::ValuesIn(refusals_of_families()));

}  // namespace
}  // namespace sftrun::spec
