#include "../arch_checks.h"
#include "sftrun/core/error.h"
#include "tower_config.h"

/// Gemma 4's tower: images of any size, positions as sums of two tables and rotary in rows and columns, norms before and after.
namespace sftrun::spec {
namespace {

constexpr const char* kGemma4Defaults =
    R"({"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 12, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "pooling_kernel_size": 3,
    "patch_size": 16, "position_embedding_size": 10240})";

/// The linear inside the module that may clamp.
TowerLinear clamped_linear(const std::string& module, int64_t in, int64_t out, bool clamps) {
  TowerLinear linear = tower_linear(module + ".linear", in, out, false);
  linear.clamps = clamps;
  if (clamps) linear.bounds = module;
  return linear;
}

void read_gemma4_heads(const JsonFields& tower, VisionSpec& vision) {
  vision.num_heads = tower_size(tower, "num_attention_heads");
  vision.head_dim = tower.require_int("head_dim", 1, 1 << 16);
  if (vision.head_dim % 4 != 0)
    tower.fail("head_dim", "a multiple of 4: rows and columns each rotate pairs of channels");
  if (tower.require_int("num_key_value_heads", 1, kMaxSize) != vision.num_heads)
    tower.fail("num_key_value_heads",
               fmt::format("`vision_config.num_attention_heads`, {}", vision.num_heads));
}

void set_gemma4_layer(const JsonFields& tower, VisionSpec& vision) {
  const int64_t hidden = vision.hidden_size, inner = vision.intermediate_size,
                heads = vision.num_heads * vision.head_dim;
  const bool clamps = tower.get_bool("use_clipped_linears", false);
  const double eps = tower.require_positive("rms_norm_eps");
  const auto norm = [&](const char* module, int64_t size) {
    return tower_norm(TowerNormKind::kRmsFp32, module, size, eps);
  };
  const auto linear = [&](const char* module, int64_t in, int64_t out) {
    return clamped_linear(module, in, out, clamps);
  };
  vision.layer = {
      .attention_in = norm("input_layernorm", hidden),
      .attention_out = norm("post_attention_layernorm", hidden),
      .mlp_in = norm("pre_feedforward_layernorm", hidden),
      .mlp_out = norm("post_feedforward_layernorm", hidden),
      .qkv = {linear("self_attn.q_proj", hidden, heads), linear("self_attn.k_proj", hidden, heads),
              linear("self_attn.v_proj", hidden, heads)},
      .query = norm("self_attn.q_norm", vision.head_dim),
      .key = norm("self_attn.k_norm", vision.head_dim),
      .value = tower_norm(TowerNormKind::kRmsPlain, "", vision.head_dim, eps),
      .output = linear("self_attn.o_proj", heads, hidden),
      .up = {linear("mlp.gate_proj", hidden, inner), linear("mlp.up_proj", hidden, inner)},
      .down = linear("mlp.down_proj", inner, hidden)};
}

void set_gemma4_merger(const JsonFields& tower, const ArchSpec& text, VisionSpec& vision) {
  vision.projector = {"model.embed_vision."};
  vision.merger = {.after = tower_norm(TowerNormKind::kRmsPlain, "", vision.hidden_size,
                                       tower.require_positive("rms_norm_eps")),
                   .merge = PatchMerge::kMean,
                   .side = tower.require_int("pooling_kernel_size", 1, 1 << 10),
                   .scales_mean = true,
                   .steps = {{tower_linear("model.embed_vision.embedding_projection",
                                           vision.hidden_size, text.hidden_size, false)}}};
  if (!tower.get_bool("standardize", false)) return;
  vision.merger.std_bias = vision.prefix + "std_bias";
  vision.merger.std_scale = vision.prefix + "std_scale";
}

/// What the text's configuration says of images.
void read_text_rules(const JsonFields& config, const ArchSpec& text, VisionSpec& vision) {
  const JsonFields fields(*config.find("text_config"), config.where(), {}, "text_config.");
  // Other values than "vision" are refused with the text model, or mean never.
  const nlohmann::json* ahead = fields.find("use_bidirectional_attention");
  if (ahead && *ahead == "vision") vision.both_ways = BothWays::kWindowedLayers;
  vision.embedded_as = fields.get_int("pad_token_id", 0, 0, text.vocab_size - 1);
}

VisionSpec read_gemma4_vision(const JsonFields& config, const ArchSpec& text) {
  const TowerConfig tower(config, kGemma4Defaults);
  VisionSpec vision;
  const std::string prefix = vision.prefix = "model.vision_tower.";
  vision.layers = prefix + "encoder.layers.";
  vision.hidden_size = tower_size(*tower, "hidden_size");
  vision.intermediate_size = tower_size(*tower, "intermediate_size");
  vision.num_layers = vision.num_used_layers =
      tower->require_int("num_hidden_layers", 1, kMaxLayers);
  read_gemma4_heads(*tower, vision);
  refuse_dropout(*tower, {"attention_dropout"});
  vision.activation = tower_activation(*tower, "hidden_activation");
  vision.attention_scale = 1;
  vision.patches = {.module = prefix + "patch_embedder.input_proj",
                    .side = square_side(*tower, "patch_size"),
                    .order = PatchOrder::kChannelsLast,
                    .is_convolution = false,
                    .is_centred = true};
  vision.positions = TowerPositions::kAxes;
  vision.position_table = prefix + "patch_embedder.position_embedding_table";
  vision.position_rows = tower_size(*tower, "position_embedding_size");
  vision.rope = TowerRope::kAxes;
  vision.rope_theta = axial_theta(*tower, 100);
  set_gemma4_layer(*tower, vision);
  set_gemma4_merger(*tower, text, vision);
  read_text_rules(config, text, vision);
  return vision;
}

std::vector<Rename> gemma4_renames() {
  std::vector<Rename> renames = language_model_renames();
  renames.push_back({"vision_tower.", "model.vision_tower."});
  renames.push_back({"embed_vision.", "model.embed_vision."});
  return renames;
}

}  // namespace

const WholeModel kWholeGemma4 = {
    .model_type = "gemma4",
    .model_class = "Gemma4ForConditionalGeneration",
    .text_type = "gemma4_text",
    .is_tied = true,
    .may_lack_vision = true,
    .image_token_id = 258880,
    .renames = gemma4_renames,
    .read = read_gemma4_vision,
};

}  // namespace sftrun::spec
