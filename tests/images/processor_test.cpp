#include "sftrun/images/processor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "images/image_files.h"
#include "sftrun/core/error.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/images/process.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::images {
namespace {

using nlohmann::json;

const json& processor_cases() {
  static const auto kCases = json::parse(
      read_text_file(std::filesystem::path(SFTRUN_TEST_DATA) / "image_processors" / "cases.json"));
  return kCases.at("cases");
}

/// @param files of a model's folder, by name
ImageProcessor read_files(const json& files) {
  const test::TemporaryDirectory folder;
  for (const auto& [name, content] : files.items())
    write_file_atomically(folder.path() / name,
                          content.is_string() ? content.get<std::string>() : content.dump());
  return read_processor(folder.path());
}

/// The processor of a preprocessor_config.json.
ImageProcessor read_settings_of(const std::string& type, json settings = json::object()) {
  settings["image_processor_type"] = type;
  return read_files({{"preprocessor_config.json", settings}});
}

std::string hash_of_values(const ProcessedImage& processed) {
  return xxh3_128(std::as_bytes(std::span(processed.values)));
}

TEST(ImageProcessor, GivesTheValuesOfTransformers) {
  std::set<ProcessorKind> kinds;
  for (const json& expected : processor_cases()) {
    ImageProcessor processor = read_files(expected.at("files"));
    processor.do_pan_and_scan = expected.at("pan_and_scan").get<bool>();
    kinds.insert(processor.kind);
    for (const json& of : expected.at("images")) {
      SCOPED_TRACE(expected.at("name").get<std::string>() + ": " + of.dump());
      const Image image = fixtures::decoded(of.at("file"));
      if (of.contains("refused")) {
        EXPECT_THROW(process(processor, image), DataError);
        continue;
      }
      const ProcessedImage processed = process(processor, image);
      const ImagePlan& plan = processed.plan;
      EXPECT_EQ(json(plan.shape(processor)), of.at("shape"));
      EXPECT_EQ(hash_of_values(processed), of.at("xxh3").get<std::string>());
      if (of.contains("num_tokens")) {
        EXPECT_EQ(plan.num_tokens, of.at("num_tokens"));
      }
      if (of.contains("grid_thw")) {
        EXPECT_EQ(json(plan.grid_thw), of.at("grid_thw"));
      }
      if (of.contains("tile_grid")) {
        EXPECT_EQ(json({plan.tile_rows, plan.tile_columns}), of.at("tile_grid"));
      }
      if (of.contains("token_grid")) {
        EXPECT_EQ(json({plan.token_rows, plan.token_columns}), of.at("token_grid"));
      }
    }
  }
  EXPECT_EQ(kinds.size(), kProcessors.size()) << "each row has a case";
}

struct Size {
  int64_t width, height;
};

TEST(ImagePlan, QwenRoundsSidesToMergedPatches) {
  const ImageProcessor processor =
      read_settings_of("Qwen2VLImageProcessor", {{"min_pixels", 3136}, {"max_pixels", 12845056}});
  const std::tuple<Size, Size, int64_t> expected[] = {
      {{1, 1}, {56, 56}, 4},
      {{70, 42}, {56, 56}, 4},  // 1.5 and 2.5 are rounded to 2
      {{640, 480}, {644, 476}, 391},
      {{1920, 1080}, {1932, 1092}, 2691},
      {{6000, 4000}, {4368, 2912}, 16224},
      {{2000, 50}, {1988, 56}, 142}};
  for (const auto& [before, after, tokens] : expected) {
    const ImagePlan plan = plan_image(processor, before.width, before.height);
    EXPECT_EQ(plan.tile_width, after.width);
    EXPECT_EQ(plan.tile_height, after.height);
    EXPECT_EQ(plan.num_tokens, tokens);
    EXPECT_EQ(plan.grid_thw, (std::array<int64_t, 3>{1, after.height / 14, after.width / 14}));
  }
}

TEST(ImagePlan, KnowsTilesAndTokensByTheSizeAlone) {
  const json smol = {{"size", {{"longest_edge", 2048}}},
                     {"max_image_size", {{"longest_edge", 512}}}};
  const ImageProcessor smolvlm = read_files({{"preprocessor_config.json",
                                              {{"image_processor_type", "SmolVLMImageProcessor"},
                                               {"size", smol.at("size")},
                                               {"max_image_size", smol.at("max_image_size")}}},
                                             {"processor_config.json", {{"image_seq_len", 64}}}});
  const ImageProcessor gemma4 = read_settings_of("Gemma4ImageProcessor");
  const ImageProcessor intern =
      read_settings_of("GotOcr2ImageProcessor", {{"size", {{"height", 448}, {"width", 448}}}});
  struct Expected {
    Size size;
    int64_t smol_rows, smol_columns, smol_tokens, gemma_tokens, intern_tiles;
  };
  const Expected expected[] = {{{640, 480}, 3, 4, 832, 266, 13},
                               {{1920, 1080}, 3, 4, 832, 264, 9},
                               {{1080, 1920}, 4, 3, 832, 264, 9},
                               {{2000, 50}, 1, 4, 320, 210, 13}};
  for (const Expected& one : expected) {
    SCOPED_TRACE(fmt::format("{} x {}", one.size.width, one.size.height));
    const ImagePlan plan = plan_image(smolvlm, one.size.width, one.size.height);
    EXPECT_EQ(plan.tile_rows, one.smol_rows);
    EXPECT_EQ(plan.tile_columns, one.smol_columns);
    EXPECT_EQ(plan.num_tokens, one.smol_tokens);
    EXPECT_EQ(plan_image(gemma4, one.size.width, one.size.height).num_tokens, one.gemma_tokens);
    EXPECT_EQ(plan_image(intern, one.size.width, one.size.height).rows, one.intern_tiles);
  }
}

TEST(ImagePlan, RefusesWhatTheProcessorRefuses) {
  test::expect_error<DataError>(
      [] { plan_image(read_settings_of("Qwen2VLImageProcessor"), 2001, 10); },
      {"2001 x 10 pixels is refused", "more than 200 times", "preprocessor_config.json"});
  test::expect_error<DataError>(
      [] { plan_image(read_settings_of("CLIPImageProcessor"), 1, 65000); },
      {"would become 224 x 14560000 pixels, which is too large"});
  test::expect_error<DataError>(
      [] {
        plan_image(read_settings_of("Qwen2VLImageProcessor", {{"do_resize", false}}), 56, 57);
      },
      {"must be multiples of 28"});
}

TEST(ImagePlan, RefusesSettingsThatTakeTooMuchMemory) {
  const json one = {{"longest_edge", 1}};
  test::expect_error<DataError>(
      [&] {
        plan_image(read_settings_of("SmolVLMImageProcessor", {{"max_image_size", one}}), 9, 9);
      },
      {"more than 65536 tiles"});
  const json large = {{"height", 60000}, {"width", 60000}};
  test::expect_error<DataError>(
      [&] {
        plan_image(read_settings_of("CLIPImageProcessor", {{"crop_size", large}}), 9, 9);
      },
      {"values, which are too many"});
}

TEST(ReadProcessor, AcceptsEveryNameOfAClass) {
  for (const ProcessorRow& row : kProcessors)
    for (const std::string_view type : row.types)
      for (const char* ending : {"", "Fast", "Pil"})
        EXPECT_EQ(read_settings_of(std::string(type) + ending).kind, row.kind);
}

TEST(ReadProcessor, PrefersTheNestedSettings) {
  const json other = {{"image_processor_type", "CLIPImageProcessor"}};
  const json nested = {
      {"image_processor",
       {{"image_processor_type", "Qwen2VLImageProcessorFast"}, {"merge_size", 4}}}};
  const ImageProcessor processor =
      read_files({{"processor_config.json", nested}, {"preprocessor_config.json", other}});
  EXPECT_EQ(processor.kind, ProcessorKind::kQwen2Vl);
  EXPECT_EQ(processor.merge_size, 4);
  EXPECT_TRUE(processor.where.ends_with("processor_config.json"));
  const ImageProcessor older = read_files(
      {{"processor_config.json", {{"image_seq_len", 9}}}, {"preprocessor_config.json", other}});
  EXPECT_EQ(older.kind, ProcessorKind::kClip);
}

TEST(ReadProcessor, TakesTheKindOfTheModelWhereNoTypeIsNamed) {
  for (const ProcessorRow& row : kProcessors)
    for (const std::string_view model : row.model_types) {
      const json settings = {{"do_rescale", false}};
      const ImageProcessor processor = read_files(
          {{"preprocessor_config.json", settings}, {"config.json", {{"model_type", model}}}});
      EXPECT_EQ(processor.kind, row.kind) << model;
      EXPECT_FALSE(processor.do_rescale);
    }
  const json empty = {{"preprocessor_config.json", json::object()},
                      {"config.json", {{"model_type", "mistral3"}}}};
  EXPECT_EQ(read_files(empty).kind, ProcessorKind::kPixtral);
  const json old = {{"feature_extractor_type", "CLIPFeatureExtractor"}};
  EXPECT_EQ(read_files({{"preprocessor_config.json", old}}).kind, ProcessorKind::kClip);
}

TEST(ReadProcessor, NamesWhatItCannotRead) {
  const auto expect = [](const json& files, std::initializer_list<std::string> parts) {
    test::expect_error<DataError>([&] { read_files(files); }, parts);
  };
  const auto settings = [](json values) {
    if (!values.contains("image_processor_type"))
      values["image_processor_type"] = "LlavaNextImageProcessor";
    return json{{"preprocessor_config.json", values}};
  };
  expect(json::object(), {"has no image processor", "copy preprocessor_config.json"});
  expect({{"preprocessor_config.json", "{"}}, {"not a JSON object"});
  expect({{"processor_config.json", {{"image_processor", 3}}}},
         {"`image_processor` must be a JSON object", "processor_config.json"});
  expect(settings({{"image_processor_type", "ViTImageProcessor"}}),
         {"\"ViTImageProcessor\" is not supported", "Qwen2VLImageProcessor"});
  expect({{"preprocessor_config.json", {{"size", 3}}}, {"config.json", {{"model_type", "bert"}}}},
         {"`image_processor_type` is missing", "\"bert\""});
  expect(settings({{"do_flip", true}}), {"`do_flip` is not known", "LLaVA-NeXT"});
  expect(settings({{"merge_size", 2}}), {"`merge_size` is not known"});
  expect({{"processor_config.json",
           {{"image_processor", {{"image_processor_type", "CLIPImageProcessor"}, {"a", 1}}}}}},
         {"`image_processor.a` is not known", "processor_config.json"});
  expect(settings({{"do_resize", "yes"}}), {"`do_resize` must be true or false; it is \"yes\""});
  expect(settings({{"resample", 6}}), {"`resample` must be an integer from 0 to 5"});
  expect(settings({{"rescale_factor", 0}}), {"`rescale_factor` must be a number above 0"});
  expect(settings({{"image_std", {1, 0, 1}}}), {"`image_std` must be above 0"});
  expect(settings({{"image_mean", {1, 2}}}), {"`image_mean` must be a number or three"});
  expect(settings({{"size", {{"shortest_edge", 0}}}}), {"`size.shortest_edge` must be an integer"});
  expect(settings({{"size", {{"longest_edge", 9}}}}), {"`size` does not say how to resize"});
  expect(settings({{"crop_size", {{"height", 4}}}}), {"`crop_size` must be"});
  expect(settings({{"image_grid_pinpoints", {{336}}}}), {"`image_grid_pinpoints` must be a list"});
  expect(settings({{"image_processor_type", "Gemma4ImageProcessor"}, {"max_soft_tokens", 100}}),
         {"70, 140, 280, 560 or 1120"});
  expect(settings({{"image_processor_type", "CLIPImageProcessor"}, {"do_pad", true}}),
         {"`do_pad` must be false"});
  expect(settings({{"image_processor_type", "PixtralImageProcessor"}, {"do_center_crop", true}}),
         {"cropping is not supported for Pixtral"});
  expect(settings(
             {{"image_processor_type", "Qwen2VLImageProcessor"}, {"size", {{"shortest_edge", 4}}}}),
         {"`size` does not say how", "the least and the most pixels"});
}

TEST(ReadProcessor, IgnoresWhatChangesNoValue) {
  const json harmless = {{"do_convert_rgb", nullptr},
                         {"processor_class", "P"},
                         {"data_format", "channels_first"},
                         {"device", nullptr},
                         {"do_pad", true},
                         {"crop_size", {{"height", 3}, {"width", 4}}},
                         {"do_center_crop", true},
                         {"unknown", nullptr}};
  const ImageProcessor plain = read_settings_of("Qwen2VLImageProcessor");
  const ImageProcessor processor = read_settings_of("Qwen2VLImageProcessor", harmless);
  const Image image = fixtures::random_image(40, 30, 1);
  EXPECT_EQ(hash_of_values(process(processor, image)), hash_of_values(process(plain, image)));
}

/// Pan and scan is off and InternVL has tiles, whatever their files say: their processors pass that.
TEST(ReadProcessor, FollowsWhatTheModelsProcessorPasses) {
  EXPECT_FALSE(
      read_settings_of("Gemma3ImageProcessor", {{"do_pan_and_scan", true}}).do_pan_and_scan);
  EXPECT_TRUE(
      read_settings_of("GotOcr2ImageProcessor", {{"crop_to_patches", false}}).crop_to_patches);
}

TEST(ReadProcessor, TakesNumbersForTheTextFromTheModel) {
  const auto read = [](const std::string& type, const json& model) {
    return read_files(
        {{"preprocessor_config.json", {{"image_processor_type", type}}}, {"config.json", model}});
  };
  EXPECT_EQ(read("PixtralImageProcessor",
                 {{"spatial_merge_size", 2}, {"vision_config", {{"patch_size", 14}}}})
                .patch_size,
            28);
  EXPECT_EQ(read("PixtralImageProcessor", json::object()).patch_size, 16);
  EXPECT_EQ(read("Gemma3ImageProcessor", {{"mm_tokens_per_image", 64}}).image_seq_length, 64);
  EXPECT_EQ(
      read("SmolVLMImageProcessor",
           {{"scale_factor", 3}, {"vision_config", {{"image_size", 384}, {"patch_size", 14}}}})
          .image_seq_length,
      81);
  const json clip = {{"vision_feature_select_strategy", "default"},
                     {"vision_config", {{"model_type", "clip_vision_model"}, {"patch_size", 14}}}};
  EXPECT_EQ(plan_image(read("CLIPImageProcessor", clip), 300, 200).num_tokens, 256);
  json full = clip;
  full["vision_feature_select_strategy"] = "full";
  EXPECT_EQ(plan_image(read("CLIPImageProcessor", full), 300, 200).num_tokens, 257);
  EXPECT_EQ(plan_image(read("CLIPImageProcessor", json::object()), 300, 200).num_tokens, 0)
      << "unknown";
}

TEST(ImageCaps, LowerWhatTheProcessorAllows) {
  const ImageProcessor qwen = read_settings_of("Qwen2VLImageProcessor");
  const auto size_of = [](const ImageProcessor& processor, const ImageCaps& caps) {
    const ImagePlan plan = plan_image(with_caps(processor, caps), 900, 600);
    return std::array<int64_t, 2>{plan.tile_width, plan.tile_height};
  };
  using Sides = std::array<int64_t, 2>;
  EXPECT_EQ(size_of(qwen, {}), (Sides{896, 588}));
  EXPECT_EQ(size_of(qwen, {.max_pixels = 10'000'000}), (Sides{896, 588})) << "never raised";
  EXPECT_EQ(size_of(qwen, {.max_pixels = 60'000}), (Sides{280, 196}));
  EXPECT_EQ(size_of(qwen, {.longest_edge = 300}), (Sides{280, 196}));
  EXPECT_EQ(size_of(qwen, {.longest_edge = 28}), (Sides{28, 28}));

  const ImageProcessor gemma4 = read_settings_of("Gemma4ImageProcessor");
  EXPECT_EQ(with_caps(gemma4, {.max_pixels = 2304 * 280}).max_soft_tokens, 280);
  EXPECT_EQ(with_caps(gemma4, {.max_pixels = 2304 * 280 - 1}).max_soft_tokens, 140);
  EXPECT_EQ(with_caps(gemma4, {.max_pixels = int64_t{1} << 40}).max_soft_tokens, 280);
  const ImageProcessor intern = read_settings_of("GotOcr2ImageProcessor");
  EXPECT_EQ(with_caps(intern, {.max_pixels = 384 * 384 * 3 + 5}).max_patches, 3);
  const ImageProcessor smolvlm = read_settings_of("SmolVLMImageProcessor");
  EXPECT_EQ(plan_image(smolvlm, 900, 600).rows, 13);
  EXPECT_EQ(plan_image(with_caps(smolvlm, {.longest_edge = 728}), 900, 600).rows, 5);
  const ImageProcessor pixtral = read_settings_of("PixtralImageProcessor");
  EXPECT_EQ(size_of(pixtral, {.longest_edge = 160}), (Sides{160, 112}));
}

TEST(ImageCaps, AreRefusedWhereTheyChangeNothing) {
  for (const ProcessorRow& row : kProcessors) {
    const ImageProcessor processor = read_settings_of(std::string(*row.types.begin()));
    if (!row.caps.max_pixels) {
      test::expect_error<ConfigError>(
          [&] { with_caps(processor, {.max_pixels = 500'000}); },
          {"the limit of pixels has no effect", std::string(row.family)});
    } else {
      test::expect_error<ConfigError>([&] { with_caps(processor, {.max_pixels = 100}); },
                                      {"100 is too low"});
    }
    if (!row.caps.longest_edge)
      test::expect_error<ConfigError>([&] { with_caps(processor, {.longest_edge = 500}); },
                                      {"the limit of the longer side has no effect"});
  }
}

TEST(Process, RescalesAndNormalisesAsTorchvisionDoes) {
  const ImageProcessor processor = read_settings_of(
      "SiglipImageProcessor", {{"size", {{"height", 4}, {"width", 5}}}, {"image_mean", 0.485}});
  const Image image = fixtures::random_image(5, 4, 2);
  const ProcessedImage processed = process(processor, image, {.backend = Backend::kTorchvision});
  const float mean = 0.485F * 255.0F, std = 0.5F * 255.0F;
  for (int64_t i = 0; i < 20; ++i)
    EXPECT_EQ(processed.values[static_cast<size_t>(i)],
              (static_cast<float>(image.pixels[static_cast<size_t>(i * 3)]) - mean) / std);
}

TEST(Process, ResizesWithTheCallersFunction) {
  const ImageProcessor processor =
      read_settings_of("SiglipImageProcessor", {{"do_normalize", false}, {"do_rescale", false}});
  Filter filter = Filter::kNearest;
  const auto sevens = [&](const Image&, int64_t width, int64_t height, Filter used) {
    filter = used;
    Image result(width, height);
    std::fill(result.pixels.begin(), result.pixels.end(), uint8_t{7});
    return result;
  };
  const ProcessedImage processed =
      process(processor, Image(3, 3), {.backend = Backend::kTorchvision, .resize = sevens});
  EXPECT_EQ(filter, Filter::kBicubic);
  ASSERT_EQ(processed.values.size(), 3U * 224 * 224);
  for (const float value : processed.values) ASSERT_EQ(value, 7);
}

/// The values of `form` from those in the reference's layout, place by place.
std::vector<float> in_form(const ImageProcessor& processor, const ProcessedImage& processed,
                           const PatchForm& form) {
  const ImagePlan& plan = processed.plan;
  const int64_t width = plan.tile_width, height = plan.tile_height, side = form.side;
  std::vector<float> values;
  for (int64_t tile = 0; tile < std::ssize(plan.tiles); ++tile) {
    const float* from = processed.values.data() + tile * 3 * width * height;
    const auto at = [&](int64_t channel, int64_t y, int64_t x) {
      return processor.row().layout == PixelLayout::kPlanes
                 ? from[(channel * height + y) * width + x]
                 : from[((y / side * (width / side) + x / side) * side * side + y % side * side +
                         x % side) *
                            3 +
                        channel];
    };
    for (int64_t patch = 0; patch < width * height / (side * side); ++patch) {
      const int64_t square = patch / (form.merge * form.merge),
                    in_square = patch % (form.merge * form.merge),
                    columns = width / (side * form.merge);
      const int64_t top = (square / columns * form.merge + in_square / form.merge) * side,
                    left = (square % columns * form.merge + in_square % form.merge) * side;
      for (int64_t i = 0; i < 3 * side * side; ++i) {
        const int64_t channel = form.is_channels_last ? i % 3 : i / (side * side),
                      pixel = form.is_channels_last ? i / 3 : i % (side * side);
        values.push_back(at(channel, top + pixel / side, left + pixel % side));
      }
    }
  }
  return values;
}

// One memory for all images, of other sizes and processors.
TEST(Process, GivesPatchesInTheFormOfTheTower) {
  ProcessMemory memory;
  std::set<ProcessorKind> kinds;
  for (const json& expected : processor_cases()) {
    const ImageProcessor processor = read_files(expected.at("files"));
    const PixelLayout layout = processor.row().layout;
    for (const json& of : expected.at("images")) {
      SCOPED_TRACE(expected.at("name").get<std::string>() + ": " + of.dump());
      if (of.contains("refused")) continue;
      const Image image = fixtures::decoded(of.at("file"));
      const ProcessedImage processed = process(processor, image);
      const ImagePlan& plan = processed.plan;
      PatchForm form{.side = processor.patch_size, .merge = processor.merge_size};
      if (layout == PixelLayout::kPlanes)
        form = plan.tile_width % 14 == 0 && plan.tile_height % 14 == 0 ? PatchForm{7, 2}
                                                                       : PatchForm{1, 1};
      if (layout == PixelLayout::kChannelLast)
        form = {processor.patch_size, processor.pooling_kernel_size, /*is_channels_last=*/true};
      std::vector<float> values(static_cast<size_t>(plan.num_values()));
      process(processor, plan, image, values, {.patches = form, .memory = &memory});
      const bool is_given = layout == PixelLayout::kMergeBlocks;
      EXPECT_TRUE(values == (is_given ? processed.values : in_form(processor, processed, form)));
      kinds.insert(processor.kind);
    }
  }
  EXPECT_EQ(kinds.size(), kProcessors.size());
}

TEST(Process, PutsOddMarginsWhereTheBackendDoes) {
  const ImageProcessor processor =
      read_settings_of("CLIPImageProcessor", {{"do_resize", false},
                                              {"do_normalize", false},
                                              {"do_rescale", false},
                                              {"crop_size", {{"height", 1}, {"width", 3}}}});
  Image image(2, 1);
  image.pixels = {10, 0, 0, 20, 0, 0};
  const auto reds = [&](Backend backend) {
    const ProcessedImage processed = process(processor, image, {.backend = backend});
    return std::vector<float>(processed.values.begin(), processed.values.begin() + 3);
  };
  EXPECT_EQ(reds(Backend::kPil), (std::vector<float>{0, 10, 20}));
  EXPECT_EQ(reds(Backend::kTorchvision), (std::vector<float>{10, 20, 0}));
}

}  // namespace
}  // namespace sftrun::images
