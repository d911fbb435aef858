#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "sftrun/core/file.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/stage.h"
#include "sftrun/spec/vision_tensors.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/safetensors.h"
#include "support/adapter_weights.h"
#include "support/expect_error.h"
#include "support/reference.h"
#include "support/temporary_directory.h"
#include "support/tensors.h"

// Models with images against what transformers gave for tiny random models (scripts/fixtures/make_vision.py).
namespace sftrun::model {
namespace {

namespace fs = std::filesystem;
using test::close;

fs::path folder_of(const std::string& kind) {
  return fs::path(SFTRUN_TEST_DATA) / "vision" / kind;
}

std::vector<std::string> vision_kinds() {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_of("")))
    if (fs::exists(entry.path() / "reference.json"))
      found.push_back(entry.path().filename().string());
  std::sort(found.begin(), found.end());
  return found;
}

/// A fixture: documents with images.
class VisionReference {
 public:
  explicit VisionReference(const std::string& kind)
      : file_(folder_of(kind) / "reference.safetensors"),
        json_(nlohmann::json::parse(read_text_file(folder_of(kind) / "reference.json"))) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  at::Tensor read(const std::string& name) const {
    const weights::SafetensorsEntry& entry = *file_.find(name);
    return test::tensor_of(entry, entry.dtype == "I64" ? at::kLong : at::kFloat);
  }
  double loss() const { return json_["loss"]; }
  double lora_loss() const { return json_["lora_loss"]; }
  const weights::SafetensorsFile& file() const { return file_; }
  std::vector<std::string> gradients() const {
    std::vector<std::string> names;
    for (const weights::SafetensorsEntry& entry : file_.entries())
      if (entry.name.starts_with("grad.")) names.push_back(entry.name.substr(5));
    return names;
  }

  /// The documents packed into one batch; a token of an image is no label.
  data::Batch batch(const spec::VisionSpec& vision) const {
    data::Batch batch;
    batch.cu_seqlens = {0};
    std::vector<at::Tensor> positions;
    for (int i = 0; has("input_ids." + std::to_string(i)); ++i) {
      const at::Tensor ids = read("input_ids." + std::to_string(i));
      for (int64_t t = 0; t < ids.numel(); ++t) {
        batch.tokens.push_back(ids[t].item<int32_t>());
        const int32_t next = t + 1 < ids.numel() ? ids[t + 1].item<int32_t>() : data::kIgnoreIndex;
        batch.labels.push_back(next == vision.image_token_id ? data::kIgnoreIndex : next);
        batch.position_ids.push_back(static_cast<int32_t>(t));
      }
      batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
      batch.document_keys.push_back(i);
      batch.max_seqlen = std::max(batch.max_seqlen, static_cast<int32_t>(ids.numel()));
      if (has("positions." + std::to_string(i)))
        positions.push_back(read("positions." + std::to_string(i)));
    }
    batch.label_tokens = std::count_if(batch.labels.begin(), batch.labels.end(),
                                       [](int32_t label) { return label != data::kIgnoreIndex; });
    add_image_rows(vision, batch);
    if (!positions.empty()) {
      const at::Tensor all = at::cat(positions, 1).to(at::kInt).contiguous();
      batch.rope_positions.assign(all.data_ptr<int32_t>(), all.data_ptr<int32_t>() + all.numel());
    }
    return batch;
  }

  layers::TowerInput images(const spec::VisionSpec& vision, const data::Batch& batch) const {
    layers::TowerInput input;
    std::vector<at::Tensor> patches;
    for (uint32_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
      uint32_t first_patch = 0;
      for (size_t k = 0; k < json_["grids"][i].size(); ++k) {
        const at::Tensor given = read(fmt::format("patches.{}.{}", i, k));
        layers::TowerTile tile{.rows = json_["grids"][i][k][0], .columns = json_["grids"][i][k][1]};
        const int64_t tiles = given.dim() == 4 ? given.size(0) : 1;
        for (int64_t n = 0; n < tiles; ++n) {
          tile.document = i, tile.first_patch = first_patch;
          first_patch += static_cast<uint32_t>(tile.patches());
          input.tiles.push_back(tile);
        }
        patches.push_back(in_tower_order(vision, given, tile));
      }
    }
    input.patches = at::cat(patches);
    return input;
  }

 private:
  /// A run for each row that a feature stands in.
  static void add_image_rows(const spec::VisionSpec& vision, data::Batch& batch) {
    for (int32_t row = 0; row < std::ssize(batch.tokens); ++row)
      if (batch.tokens[static_cast<size_t>(row)] == vision.image_token_id)
        batch.image_rows.push_back({row, row + 1});
  }
  static at::Tensor in_tower_order(const spec::VisionSpec& vision, const at::Tensor& given,
                                   const layers::TowerTile& tile) {
    if (given.dim() == 4) return patches_of_planes(given, vision);
    if (vision.patches.order == spec::PatchOrder::kChannelsFirst)
      return given;  // Qwen: merged already
    const int64_t side = vision.merger.side, width = given.size(1);
    return given.view({tile.rows / side, side, tile.columns / side, side, width})
        .transpose(1, 2)
        .reshape({-1, width});
  }
  /// @param tiles [n, channels, height, width]
  static at::Tensor patches_of_planes(const at::Tensor& tiles, const spec::VisionSpec& vision) {
    const int64_t n = tiles.size(0), c = tiles.size(1), p = vision.patches.side,
                  side = vision.merger.side;
    return tiles.view({n, c, tiles.size(2) / (p * side), side, p, -1, side, p})
        .permute({0, 2, 5, 3, 6, 1, 4, 7})
        .reshape({-1, c * p * p});
  }

  weights::SafetensorsFile file_;
  nlohmann::json json_;
};

std::unique_ptr<Decoder> load(const std::string& kind, const DecoderOptions& options) {
  return Decoder::load(weights::Checkpoint::open(folder_of(kind)), options);
}

class Vision : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Vision, testing::ValuesIn(vision_kinds()));

/// The images of a fixture, which are not in files.
class GivenImages final : public ImageSource {
 public:
  explicit GivenImages(layers::TowerInput input) : input_(std::move(input)) {}
  layers::TowerInput load(const data::Batch&, data::MediaFaults*) override { return input_; }

 private:
  layers::TowerInput input_;
};

/// The batch of all documents of a fixture, with its images.
PackedBatch packed_documents(Decoder& decoder, const VisionReference& reference,
                             data::Batch& batch) {
  const spec::VisionSpec& vision = decoder.tower().spec;
  batch = reference.batch(vision);
  decoder.read_images_from(std::make_shared<GivenImages>(reference.images(vision, batch)));
  return prepare_batch(batch, decoder.rope(), decoder.batch_target(), {});
}

/// Every gradient of the decoder's parameters is that of the reference.
void expect_gradients(Decoder& decoder, const weights::SafetensorsFile& file,
                      const std::string& prefix) {
  for (const layers::Parameter& parameter : decoder.parameters().parameters()) {
    const weights::SafetensorsEntry* entry = file.find(prefix + parameter.name);
    ASSERT_NE(entry, nullptr) << parameter.name;
    const at::Tensor expected = test::tensor_of(*entry, at::kFloat);
    // Of a bias of keys, which softmax does not see: 0, whatever the model is.
    if (expected.abs().max().item<double>() < 1e-12) {
      EXPECT_LT(parameter.grad.abs().max().item<double>(), 1e-6) << parameter.name;
      continue;
    }
    EXPECT_TRUE(
        close(parameter.in_file_order(parameter.grad).reshape(expected.sizes()), expected, 1e-4))
        << parameter.name;
  }
}

double mean_loss(Decoder& decoder, const PackedBatch& packed, const data::Batch& batch) {
  const auto labels = static_cast<double>(batch.label_tokens);
  return Stage(decoder).forward_backward(packed, {.grad_scale = 1 / labels}).item<double>() /
         labels;
}

DecoderOptions with_images(Trains trains, bool checkpoints) {
  DecoderOptions options{.trains = trains};
  options.with_vision = true;
  options.gradient_checkpointing = checkpoints;
  return options;
}

TEST_P(Vision, EqualsTransformersPacked) {
  const VisionReference reference(GetParam());
  for (const bool checkpoints : {false, true}) {
    const auto decoder = load(GetParam(), with_images(Trains::kFull, checkpoints));
    data::Batch batch;
    const PackedBatch packed = packed_documents(*decoder, reference, batch);
    const Stage stage(*decoder);
    MicroBatchRun run(packed);
    stage.forward(run);
    std::vector<at::Tensor> features, logits;
    for (int i = 0; reference.has("input_ids." + std::to_string(i)); ++i) {
      if (reference.has("features." + std::to_string(i)))
        features.push_back(reference.read("features." + std::to_string(i)));
      logits.push_back(reference.read("logits." + std::to_string(i)));
    }
    EXPECT_TRUE(close(run.tower->features(), at::cat(features), 1e-5));
    EXPECT_TRUE(
        close(stage.logits(packed, at::arange(packed.num_tokens())), at::cat(logits), 1e-5));
    EXPECT_NEAR(mean_loss(*decoder, packed, batch), reference.loss(), 1e-5);
    expect_gradients(*decoder, reference.file(), "grad.");
    EXPECT_GT(decoder->parameters().parameters().size(), reference.gradients().size() - 2);
  }
}

// Adapters on every linear layer of the text model, tower and projector, as PEFT's.
TEST_P(Vision, EqualsPeft) {
  const VisionReference reference(GetParam());
  const weights::SafetensorsFile gradients(folder_of(GetParam()) / "lora.safetensors");
  for (const bool checkpoints : {false, true}) {
    DecoderOptions options = with_images(Trains::kLora, checkpoints);
    options.lora = {.r = 2, .alpha = 4};
    const auto decoder = load(GetParam(), options);
    EXPECT_EQ(decoder->parameters().parameters().size(), gradients.entries().size());
    test::set_adapter_weights(decoder->parameters(), /*seed=*/1);
    data::Batch batch;
    const PackedBatch packed = packed_documents(*decoder, reference, batch);
    EXPECT_NEAR(mean_loss(*decoder, packed, batch), reference.lora_loss(), 1e-5);
    expect_gradients(*decoder, gradients, "");
  }
}

// One part trains: its gradients are those of the whole, and no other part has any.
TEST_P(Vision, TrainsItsParts) {
  const VisionReference reference(GetParam());
  using spec::ModelPart;
  size_t num_parameters = 0;
  for (const ModelPart part : {ModelPart::kLanguage, ModelPart::kProjector, ModelPart::kVision}) {
    DecoderOptions options = with_images(Trains::kFull, part == ModelPart::kVision);
    options.parts = {.language = part == ModelPart::kLanguage,
                     .projector = part == ModelPart::kProjector,
                     .vision = part == ModelPart::kVision};
    const auto decoder = load(GetParam(), options);
    data::Batch batch;
    const PackedBatch packed = packed_documents(*decoder, reference, batch);
    EXPECT_NEAR(mean_loss(*decoder, packed, batch), reference.loss(), 1e-5);
    expect_gradients(*decoder, reference.file(), "grad.");
    for (const layers::Parameter& parameter : decoder->parameters().parameters())
      EXPECT_EQ(spec::part_of(decoder->arch(), parameter.name), part) << parameter.name;
    num_parameters += decoder->parameters().parameters().size();
  }
  const auto whole = load(GetParam(), with_images(Trains::kFull, false));
  EXPECT_EQ(num_parameters, whole->parameters().parameters().size());
}

struct MixedParts {
  TrainedParts lora, full;
};

DecoderOptions with_mixed_parts(const spec::ArchSpec& arch, const MixedParts& mixed) {
  DecoderOptions options = with_images(Trains::kLora, /*checkpoints=*/false);
  options.lora = {.r = 2, .alpha = 6};
  options.parts = TrainedParts::none();
  for (const ModelPart part : kModelParts) {
    if (mixed.lora.has(part) || mixed.full.has(part)) options.parts.add(part);
    if (!mixed.full.has(part)) continue;
    for (const std::string& module : spec::modules_of(arch, part))
      options.lora.modules_to_save.push_back(module);
  }
  options.lora.parts = options.parts;
  return options;
}

const std::vector<MixedParts>& mixtures() {
  static const std::vector<MixedParts> all = {
      {.lora = {true, false, false}, .full = {false, true, false}},
      {.lora = {true, false, true}, .full = {false, true, false}},
      {.lora = {true, false, false}, .full = {false, true, true}},
      {.lora = {true, true, false}, .full = {false, false, true}}};
  return all;
}

// B is zero at the start, so the model is the base: tensors of full parts have the gradients of full training, A none, and B those of
// its matrix times A: dL/dB = scale dL/dW A^T.
TEST_P(Vision, TrainsPartsInFullBesideLora) {
  const VisionReference reference(GetParam());
  const auto gradient_of = [&](const std::string& name) { return reference.read("grad." + name); };
  for (const MixedParts& mixed : mixtures()) {
    const std::shared_ptr<const weights::Checkpoint> base =
        weights::Checkpoint::open(folder_of(GetParam()));
    const auto decoder = Decoder::load(base, with_mixed_parts(base->arch(), mixed));
    data::Batch batch;
    const PackedBatch packed = packed_documents(*decoder, reference, batch);
    EXPECT_NEAR(mean_loss(*decoder, packed, batch), reference.loss(), 1e-5);
    size_t num_full = 0;
    for (const layers::Parameter& parameter : decoder->parameters().parameters()) {
      EXPECT_TRUE(decoder->options().parts.has(parameter.part)) << parameter.name;
      const std::string tensor = weights::saved_tensor(parameter.name);
      if (tensor.empty()) continue;
      ++num_full;
      EXPECT_TRUE(mixed.full.has(parameter.part)) << parameter.name;
      EXPECT_EQ(spec::part_of(decoder->arch(), tensor), parameter.part) << parameter.name;
      const at::Tensor expected = gradient_of(tensor);
      const at::Tensor given = parameter.in_file_order(parameter.grad).reshape(expected.sizes());
      if (expected.abs().max().item<double>() < 1e-12)
        EXPECT_LT(given.abs().max().item<double>(), 1e-6) << tensor;
      else
        EXPECT_TRUE(close(given, expected, 1e-4)) << tensor;
    }
    size_t num_trained = 0;  // tensors of the full parts
    for (const spec::TensorSpec& tensor :
         spec::vision_tensor_specs(*base->arch().vision, base->arch().hidden_size))
      num_trained += mixed.full.has(tensor.part) && tensor.role != TensorRole::kBuffer &&
                     spec::is_read(*base->arch().vision, tensor);
    EXPECT_EQ(num_full, num_trained);
    for (const layers::Linear* linear : decoder->adapted_linears()) {
      EXPECT_TRUE(mixed.lora.has(linear->lora->b->part)) << linear->name;
      EXPECT_GT(linear->lora->a->master.abs().max().item<double>(), 0) << linear->name;
      EXPECT_EQ(at::count_nonzero(linear->lora->a->grad).item<int64_t>(), 0) << linear->name;
      const at::Tensor expected = gradient_of(linear->name + ".weight")
                                      .matmul(linear->lora->a->master.t())
                                      .mul(linear->lora->scale);
      EXPECT_TRUE(close(linear->lora->b->grad, expected, 1e-4)) << linear->name;
    }
    EXPECT_EQ(decoder->parameters().parameters().size(),
              num_full + 2 * decoder->adapted_linears().size());
  }
}

/// All modules of transformers' model whose names end in a linear's, from the tensors in the files.
std::vector<std::string> modules_with_weights(const weights::Checkpoint& base) {
  std::vector<std::string> modules;
  std::vector<spec::TensorSpec> tensors = spec::tensor_specs(base.arch());
  for (spec::TensorSpec& tensor :
       spec::vision_tensor_specs(*base.arch().vision, base.arch().hidden_size))
    tensors.push_back(std::move(tensor));
  for (const spec::TensorSpec& tensor : tensors)
    if (tensor.name.ends_with(".weight"))
      modules.push_back(tensor.name.substr(0, tensor.name.rfind('.')));
  return modules;
}

// adapter_config.json names the adapted modules and no others, and the files load again.
TEST_P(Vision, WritesAdaptersOfItsParts) {
  const std::shared_ptr<const weights::Checkpoint> base =
      weights::Checkpoint::open(folder_of(GetParam()));
  for (const MixedParts& mixed : mixtures()) {
    const DecoderOptions options = with_mixed_parts(base->arch(), mixed);
    const auto decoder = Decoder::load(base, options);
    test::set_adapter_weights(decoder->parameters(), /*seed=*/3);
    const weights::AdapterConfig config = adapter_config_of(*decoder, "");
    EXPECT_EQ(config.lora.modules_to_save, options.lora.modules_to_save);
    std::set<std::string> adapted, targeted;
    for (const layers::Linear* linear : decoder->adapted_linears()) adapted.insert(linear->name);
    ASSERT_TRUE(config.lora.target_pattern);
    for (const std::string& module : modules_with_weights(*base))
      if (config.lora.target_pattern->matches(module)) targeted.insert(module);
    EXPECT_EQ(targeted, adapted);

    const test::TemporaryDirectory directory;
    weights::write_adapter(directory.path(), config, adapter_tensors(*decoder, own_masters()));
    const auto read = weights::load_adapter_config(directory.path(), base->arch());
    TrainedParts written = TrainedParts::text();  // Gemma 3's projector has no linear layers
    for (const layers::Parameter& parameter : decoder->parameters().parameters())
      written.add(parameter.part);
    EXPECT_EQ(read.lora.parts, written);
    const auto again = Decoder::load(base, options);
    load_adapter_weights(*again, directory.path());
    for (const layers::Parameter& parameter : decoder->parameters().parameters())
      EXPECT_TRUE(at::equal(again->parameters().find(parameter.name)->master, parameter.master))
          << parameter.name;
    // A model that reads texts alone takes the text part, and a run does not lose the others.
    DecoderOptions text{.trains = Trains::kLora};
    text.lora = read.lora;
    const auto reader = Decoder::load(base, text);
    load_adapter_weights(*reader, directory.path());
    for (const layers::Parameter& parameter : reader->parameters().parameters())
      EXPECT_TRUE(at::equal(decoder->parameters().find(parameter.name)->master, parameter.master));
    test::expect_error<DataError>(
        [&] {
          weights::require_text_adapter(weights::load_adapter(directory.path(), read, base->arch()),
                                        base->arch(), directory.path());
        },
        {"the text model alone is written"});
    text.lora.parts = TrainedParts::text();
    text.parts = TrainedParts::text();
    text.lora.modules_to_save.clear();
    const auto run = Decoder::load(base, text);
    test::expect_error<DataError>([&] { load_adapter_weights(*run, directory.path()); },
                                  {"to tuning.train_parts"});
  }
}

// A batch of text alone runs through a model with a tower, and gives what the text model gives.
TEST_P(Vision, ReadsTextAlone) {
  const VisionReference reference(GetParam());
  const auto decoder = load(GetParam(), with_images(Trains::kFull, false));
  DecoderOptions text_options{.trains = Trains::kFull};
  const auto text = load(GetParam(), text_options);
  data::Batch batch;
  batch.tokens = {3, 4, 5, 6, 7};
  batch.labels = {4, 5, 6, 7, data::kIgnoreIndex};
  batch.position_ids = {0, 1, 2, 3, 4};
  batch.cu_seqlens = {0, 5}, batch.document_keys = {0}, batch.max_seqlen = 5,
  batch.label_tokens = 4;
  const auto loss_of = [&](Decoder& of) {
    return mean_loss(of, prepare_batch(batch, of.rope(), of.batch_target(), {}), batch);
  };
  EXPECT_EQ(loss_of(*decoder), loss_of(*text));
  for (const layers::Parameter& parameter : text->parameters().parameters())
    EXPECT_TRUE(at::equal(decoder->parameters().find(parameter.name)->grad, parameter.grad));
}

}  // namespace
}  // namespace sftrun::model
