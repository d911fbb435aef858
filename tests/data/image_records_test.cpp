#include <gtest/gtest.h>

#include "content_parts.h"
#include "data/toy_vision_model.h"
#include "media_text.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/data/prompt.h"
#include "sftrun/data/sequence.h"
#include "sftrun/images/header.h"
#include "sftrun/templates/builtin_templates.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

using config::LossOnChoice;

std::filesystem::path image_folder() {
  return std::filesystem::path(SFTRUN_TEST_DATA) / "images";
}
std::string file_of(const char* name) {
  return read_text_file(image_folder() / name);
}

/// 37 x 29 and 129 x 97 pixels, and one of 3 x 2 that is turned by EXIF.
constexpr const char *kSmallPng = "resize-37x29.png", *kLargePng = "resize-129x97.png",
                     *kTurnedJpeg = "exif-6.jpg";

Sequence built(const Json& record, RecordFormat format = RecordFormat::kMessages,
               const TextModel& model = test::toy_vision_model(), SequenceOptions options = {}) {
  return SequenceBuilder(format, model, std::move(options))
      .build(record, "data.jsonl:3", image_folder())
      .at(0);
}

std::string error_of(const Json& record, RecordFormat format = RecordFormat::kMessages,
                     const TextModel& model = test::toy_vision_model()) {
  return test::error_of([&] { built(record, format, model); });
}

Json asked(Json content) {
  return {{"messages",
           {{{"role", "user"}, {"content", std::move(content)}},
            {{"role", "assistant"}, {"content", "It is red."}}}}};
}
Json part(const char* key, Json value) {
  return {{"type", "image"}, {key, std::move(value)}};
}
Json text(const char* words) {
  return {{"type", "text"}, {"text", words}};
}

/// Runs of images' tokens as their number.
std::string shortened_text(const Sequence& sequence, const std::string& feature) {
  std::string result;
  for (size_t at = 0; at < sequence.text.size();) {
    size_t count = 0;
    while (sequence.text.compare(at, feature.size(), feature) == 0) at += feature.size(), ++count;
    if (count > 0)
      result += fmt::format("{{{}}}", count);
    else
      result += sequence.text[at++];
  }
  return result;
}
std::string qwen_text(const Sequence& sequence) {
  return shortened_text(sequence, "<|image_pad|>");
}

/// What is trained on, as text, with runs that are apart separated by '|'.
std::string trained_text(const Sequence& sequence) {
  std::string out;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    if (!sequence.mask[i]) continue;
    if (!out.empty() && !sequence.mask[i - 1]) out += '|';
    const auto [begin, end] = sequence.spans[i];
    out += sequence.text.substr(begin, end - begin);
  }
  return out;
}

constexpr const char* kBehindImage =
    "What colour?<|im_end|>\n<|im_start|>assistant\nIt is red.<|im_end|>\n";
/// 40 x 32 pixels after resizing: 5 x 4 tokens.
const std::string kSmallText =
    std::string("<|im_start|>user\n<|vision_start|>{20}<|vision_end|>") + kBehindImage;

TEST(ImageParts, OfEveryFormAreRead) {
  const std::string encoded = encode_base64(file_of(kSmallPng));
  const std::string in_lines = encoded.substr(0, 76) + "\n" + encoded.substr(76);
  const Json forms[] = {
      part("path", kSmallPng),
      part("image", kSmallPng),
      part("url", kSmallPng),
      part("path", (image_folder() / kSmallPng).string()),
      part("url", "file://" + (image_folder() / kSmallPng).string()),
      part("image", "file://localhost" + (image_folder() / kSmallPng).string()),
      part("image", "file://resize%2D37x29.png"),
      part("url", "data:image/png;base64," + encoded),
      part("image", {{"path", kSmallPng}, {"bytes", nullptr}}),
      part("image", {{"path", "no such file"}, {"bytes", json_of_bytes(file_of(kSmallPng))}}),
      part("bytes", json_of_bytes(file_of(kSmallPng))),
      part("bytes", encoded),
      part("base64", in_lines),
      {{"type", "image_url"}, {"image_url", {{"url", kSmallPng}, {"detail", "high"}}}},
      {{"type", "image_url"}, {"image_url", "data:;base64," + encoded}},
      {{"image", kSmallPng}},
      {{"type", "image"}, {"path", kSmallPng}, {"text", nullptr}, {"url", ""}, {"detail", "low"}}};
  for (const Json& form : forms) {
    SCOPED_TRACE(to_json_text(form).substr(0, 80));
    const Sequence sequence = built(asked({form, text("What colour?")}));
    EXPECT_EQ(qwen_text(sequence), kSmallText);
    EXPECT_EQ(trained_text(sequence), "It is red.<|im_end|>");
    ASSERT_EQ(sequence.media.size(), 1U);
    const SequenceMedia& image = sequence.media[0];
    EXPECT_EQ(image.width, 37);
    EXPECT_EQ(image.height, 29);
    EXPECT_EQ(image.num_tokens, 20);
    EXPECT_EQ(image.rows, 80);
    EXPECT_EQ(image.grid_thw, (std::array<int64_t, 3>{1, 8, 10}));
    EXPECT_EQ(image.end - image.begin, 20);
    EXPECT_EQ(sequence.ids.at(static_cast<size_t>(image.begin)), test::kImagePad);
    EXPECT_EQ(sequence.ids.at(static_cast<size_t>(image.begin) - 1), test::kVisionStart);
    EXPECT_EQ(sequence.ids.at(static_cast<size_t>(image.end)), test::kVisionEnd);
    EXPECT_EQ(read_media(image.media), file_of(kSmallPng));
  }
}

TEST(ImageParts, HaveTheSizeThatExifTurnsThemTo) {
  const SequenceMedia image = built(asked({part("path", kTurnedJpeg), text("q")})).media.at(0);
  const std::string file = file_of(kTurnedJpeg);
  const images::ImageHeader header =
      images::read_header(std::as_bytes(std::span(file)), kTurnedJpeg);
  ASSERT_NE(header.stored_width, header.stored_height);
  EXPECT_EQ(image.width, header.stored_height);
  EXPECT_EQ(image.height, header.stored_width);
}

TEST(ImageParts, OfSeveralTurnsKeepTheirOrder) {
  const Json record = {
      {"messages",
       {{{"role", "user"},
         {"content", {text("a"), part("path", kSmallPng), part("path", kLargePng)}}},
        {{"role", "assistant"}, {"content", "b"}},
        {{"role", "tool"}, {"content", {part("path", kTurnedJpeg), text("c")}}},
        {{"role", "user"}, {"content", {part("path", kSmallPng)}}},
        {{"role", "assistant"}, {"content", {part("path", kSmallPng), text("d")}}}}}};
  const Sequence sequence = built(record);
  std::vector<int64_t> widths;
  for (const SequenceMedia& image : sequence.media) widths.push_back(image.width);
  EXPECT_EQ(widths, (std::vector<int64_t>{37, 129, sequence.media.at(2).width, 37, 37}));
  EXPECT_EQ(trained_text(sequence), "b<|im_end|>|d<|im_end|>");
  int64_t at = 0;
  for (const SequenceMedia& image : sequence.media) {
    EXPECT_GE(image.begin, at);
    at = image.end;
    EXPECT_EQ(std::count(sequence.ids.begin() + image.begin, sequence.ids.begin() + image.end,
                         test::kImagePad),
              image.num_tokens);
  }
}

TEST(ImageParts, OfBadImagesAreRefusedByName) {
  const auto refused = [](Json form, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(to_json_text(form).substr(0, 80));
    test::expect_error([&] { built(asked({text("q"), std::move(form)})); }, parts);
  };
  refused(part("path", "none.png"), {"messages[0].content[1]", "data.jsonl:3", "none.png"});
  refused(part("url", "https://example.com/a.png"),
          {"messages[0].content[1] is a URL", "not downloaded", "download the file"});
  refused(part("url", "file:///none/a.png"), {"messages[0].content[1]", "/none/a.png"});
  refused(part("url", "data:text/plain,abc"), {"data: URL without base64"});
  refused(part("base64", "#!"), {"not valid base64"});
  refused(part("base64", encode_base64("no image")), {"messages[0].content[1]: ", "data.jsonl:3"});
  refused(part("path", 3), {"is of type number"});
  refused(part("image", Json::object({{"size", 3}})), {"its keys: \"size\""});
  refused(part("path", "."), {"messages[0].content[1]"});
  refused({{"type", "image"}}, {"an image without a file", "has no \"images\""});
  refused({{"type", "image"}, {"path", kSmallPng}, {"max_pixels", 100}},
          {"has \"max_pixels\" beside its image", "data.max_image_pixels"});
  refused({{"type", "image"}, {"path", kSmallPng}, {"width", 100}},
          {"has \"width\" beside its image", "remove the key"});
  refused({{"type", "image"}, {"file", kSmallPng}},
          {"is an image without a file: its \"file\" is not read", "\"path\", \"url\""});
  refused({{"type", "input_image"}, {"image_url", kSmallPng}},
          {"has the type \"input_image\"", "text, image, image_url or video"});
  refused({{"type", "audio"}, {"path", "a.wav"}}, {"has the type \"audio\"", "sound is not read"});
  refused({{"type", "video"}, {"path", kSmallPng}}, {"the record has a video", "<|video_pad|>"});
  // Limits, by the header.
  std::string huge = file_of(kSmallPng);
  huge[16] = huge[20] = 1;  // PNG: 2^24 + … pixels a side
  refused(part("bytes", json_of_bytes(huge)), {"messages[0].content[1]: ", "data.jsonl:3"});
}

// They are bad records from the start, not errors of the step that needs their pixels.
TEST(ImageParts, OfTruncatedImagesAreRefusedWhereTheirPixelsAreNotAll) {
  for (const char* name :
       {"truncated.jpg", "no-end-marker.jpg", "truncated.png", "truncated.webp"}) {
    test::expect_error(
        [&] {
          built(asked({part("path", name), text("q")}));
        },
        {"messages[0].content[0]: ", "is truncated", "data.jsonl:3", name});
    test::expect_error(
        [&] {
          built(asked({part("bytes", json_of_bytes(file_of(name))), text("q")}));
        },
        {"messages[0].content[0]: ", "is truncated", "data.jsonl:3"});
  }
  for (const char* whole : {"no-end-chunk.png", "garbage-behind.jpg", "garbage-behind.png",
                            "rgb-lossy.webp", "rgb.jpg"})
    EXPECT_EQ(built(asked({part("path", whole), text("q")})).media.size(), 1U) << whole;
}

TEST(ImageColumns, FillPlaceholdersInOrder) {
  const Json record = {
      {"images", {{{"bytes", json_of_bytes(file_of(kSmallPng))}, {"path", "x.png"}}, kLargePng}},
      {"messages",
       {{{"role", "user"},
         {"content",
          {{{"type", "image"}},
           part("path", kTurnedJpeg),
           text("q"),
           {{"type", "image"}, {"text", ""}}}}},
        {{"role", "assistant"}, {"content", "a"}}}}};
  const Sequence sequence = built(record);
  ASSERT_EQ(sequence.media.size(), 3U);
  EXPECT_EQ(sequence.media[0].width, 37);
  EXPECT_EQ(sequence.media[2].width, 129);
  EXPECT_TRUE(sequence.unread_columns.empty());
}

TEST(ImageColumns, FillLlavasMarkers) {
  const Json record = {{"id", "1"},
                       {"image", kSmallPng},
                       {"conversations",
                        {{{"from", "human"}, {"value", "<image>\nWhat colour?"}},
                         {{"from", "gpt"}, {"value", "It is red."}}}}};
  EXPECT_EQ(qwen_text(built(record, RecordFormat::kShareGpt)), kSmallText);
  Json behind = record;
  behind["conversations"][0]["value"] = "What colour?\n<image>";
  EXPECT_EQ(qwen_text(built(behind, RecordFormat::kShareGpt)),
            "<|im_start|>user\nWhat colour?<|vision_start|>{20}<|vision_end|><|im_end|>\n"
            "<|im_start|>assistant\nIt is red.<|im_end|>\n");
  Json two = record;
  two["image"] = {kSmallPng, kSmallPng};
  two["conversations"][0]["value"] = "<image> and <image>";
  EXPECT_EQ(built(two, RecordFormat::kShareGpt).media.size(), 2U);
}

TEST(ImageColumns, GoBeforeTheFirstQuestionAsInTrl) {
  const Json record = {{"images", Json::array({kSmallPng})},
                       {"messages",
                        {{{"role", "system"}, {"content", "s"}},
                         {{"role", "user"}, {"content", "What colour?"}},
                         {{"role", "assistant"}, {"content", "It is red."}}}}};
  EXPECT_EQ(qwen_text(built(record)), "<|im_start|>system\ns<|im_end|>\n" + kSmallText);
  const Json turns = {{"images", Json::array({kSmallPng})},
                      {"prompt", {{{"role", "user"}, {"content", "What colour?"}}}},
                      {"completion", {{{"role", "assistant"}, {"content", "It is red."}}}}};
  EXPECT_EQ(qwen_text(built(turns, RecordFormat::kPromptCompletion)), kSmallText);
  const Json alpaca = {
      {"image", kSmallPng}, {"instruction", "What colour?"}, {"output", "It is red."}};
  EXPECT_EQ(qwen_text(built(alpaca, RecordFormat::kAlpaca)), kSmallText);
}

TEST(ImageColumns, OfAnotherNumberThanMarkersAreRefused) {
  const Json one_marker = asked("<image>What colour?");
  Json record = one_marker;
  record["images"] = {kSmallPng, kLargePng};
  test::expect_error([&] { built(record); },
                     {"columns have 2 images", "texts have 1", "data.jsonl:3"});
  record["images"] = Json::array({kSmallPng});
  record["messages"][0]["content"] = "<image><image>q";
  test::expect_error([&] { built(record); }, {"columns have 1 image,", "texts have 2"});
  record["messages"][0]["content"] = {text("q")};  // a list without a place
  test::expect_error([&] { built(record); }, {"columns have 1 image,", "texts have 0"});
  record["image"] = kSmallPng;
  test::expect_error([&] { built(record); }, {"both \"images\" and \"image\""});
}

// An empty column says that the record's images are missing.
TEST(ImageColumns, ThatAreEmptyHaveFewerImagesThanMarkers) {
  for (const char* key : {"images", "image"}) {
    for (const Json& nothing : {Json(), Json(""), Json::array(), Json::object()}) {
      SCOPED_TRACE(fmt::format("{} {}", key, nothing.dump()));
      Json record = asked("<image>What colour?");
      record[key] = nothing;
      test::expect_error([&] { built(record); },
                         {"columns have 0 images", "texts have 1", "data.jsonl:3",
                          "write the file of each image", "remove <image>"});
      record["messages"][0]["content"] = {text("<image>\nWhat colour?")};
      test::expect_error([&] { built(record); }, {"columns have 0 images", "texts have 1"});
      record["messages"][0]["content"] = {Json{{"type", "image"}}, text("What colour?")};
      test::expect_error([&] { built(record); }, {"columns have 0 images", "texts have 1"});
      record["messages"][0]["content"] = {part("path", kSmallPng), text("What colour?")};
      EXPECT_EQ(qwen_text(built(record)), kSmallText);
      record["messages"][0]["content"] = "What colour?";
      EXPECT_TRUE(built(record).media.empty());
    }
  }
  for (const Json& of_texts :
       {Json{{"prompt", "<image>q"}, {"completion", "a"}}, Json{{"text", "a<image>b"}}}) {
    Json record = of_texts;
    const RecordFormat format =
        record.contains("text") ? RecordFormat::kText : RecordFormat::kPromptCompletion;
    EXPECT_TRUE(built(record, format).has_idle_marker);
    record["images"] = Json::array();
    test::expect_error([&] { built(record, format); }, {"columns have 0 images", "texts have 1"});
  }
}

TEST(ImageColumns, FillMarkersInTextParts) {
  Json record = asked({text("<image>\nWhat colour?")});
  record["images"] = Json::array({kSmallPng});
  EXPECT_EQ(qwen_text(built(record)), kSmallText);
  record["messages"][0]["content"] = {Json{{"type", "image"}}, text("<image>\nWhat colour?")};
  test::expect_error([&] { built(record); }, {"columns have 1 image,", "texts have 2"});
}

TEST(ImageColumns, WhereThereAreNoneMarkersAreText) {
  const Sequence sequence = built(asked("<image>What colour?"));
  EXPECT_TRUE(sequence.media.empty());
  EXPECT_TRUE(sequence.has_idle_marker);
  EXPECT_NE(sequence.text.find("<image>What colour?"), std::string::npos);
  EXPECT_FALSE(built(asked("What colour?")).has_idle_marker);
  Json record = asked("<image>What colour?");
  record["images"] = Json::array();
  EXPECT_TRUE(built(record, RecordFormat::kMessages, test::toy_model()).media.empty());
  record["images"] = Json::array({""});
  EXPECT_NE(error_of(record).find("images[0]"), std::string::npos);
}

TEST(ImageTexts, ThatStandForImagesAreNoText) {
  for (const char* content : {"a <|image_pad|> b", "<|vision_start|><|image_pad|><|vision_end|>"})
    EXPECT_NE(error_of(asked(content)).find("messages[0].content contains `<|image_pad|>`"),
              std::string::npos);
  Json answer = asked({part("path", kSmallPng), text("q")});
  answer["messages"][1]["content"] = "<|image_pad|>";
  EXPECT_NE(error_of(answer).find("messages[1].content contains"), std::string::npos);
  const TextModel gemma = test::toy_vision_model(test::toy_gemma3());
  EXPECT_NE(error_of(asked("<image_soft_token>"), RecordFormat::kMessages, gemma)
                .find("contains `<image_soft_token>`"),
            std::string::npos);
  // A marker without a column of images: text for Qwen, an image for LLaVA's template.
  EXPECT_EQ(built(asked("<image>")).media.size(), 0U);
  EXPECT_NE(error_of(asked("<image>"), RecordFormat::kMessages,
                     test::toy_vision_model(test::toy_smolvlm()))
                .find("messages[0].content contains `<image>`"),
            std::string::npos);
}

TEST(ImageTexts, ThatTheTemplateLeavesOutAreRefused) {
  const std::string strings_alone =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
      "{% if m.role == 'tool' %}{% for p in m.content if p.type == 'text' %}{{ p.text }}"
      "{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  test::expect_error(
      [&] {
        built(asked({part("path", kSmallPng), text("q")}), RecordFormat::kMessages,
              test::toy_vision_model(test::toy_qwen(), strings_alone));
      },
      {"the chat template writes 0 of the 1 images", "data.jsonl:3"});
}

TEST(ImageTexts, OfGemmaHaveLineBreaksWithoutLabels) {
  const TextModel gemma = test::toy_vision_model(test::toy_gemma3());
  SequenceOptions everything{.loss_on = LossOnChoice::kAll, .with_parts = true};
  const Sequence sequence = built(asked({text("a"), part("path", kSmallPng), text("b")}),
                                  RecordFormat::kMessages, gemma, everything);
  EXPECT_EQ(shortened_text(sequence, "<image_soft_token>"),
            "<|im_start|>user\na\n\n<start_of_image>{3}<end_of_image>\n\nb<|im_end|>\n"
            "<|im_start|>assistant\nIt is red.<|im_end|>\n");
  EXPECT_EQ(trained_text(sequence),
            "<|im_start|>user\na|b<|im_end|>\n<|im_start|>assistant\nIt is red.<|im_end|>\n");
  EXPECT_EQ(sequence.media.at(0).end - sequence.media.at(0).begin, 3 + 2 + 4);
  std::string of_image;
  for (const Sequence::Part& one : sequence.parts)
    if (one.name == "image")
      of_image += sequence.text.substr(one.span.begin, one.span.end - one.span.begin);
  EXPECT_TRUE(of_image.starts_with("\n\n<start_of_image>")) << of_image;
  EXPECT_TRUE(of_image.ends_with("<end_of_image>\n\n"));
  uint32_t at = 0;  // parts cover the text
  for (const Sequence::Part& one : sequence.parts) {
    EXPECT_EQ(one.span.begin, at);
    at = one.span.end;
  }
  EXPECT_EQ(at, sequence.text.size());
}

TEST(ImageTexts, OfTilesHaveTheirMarkers) {
  const Sequence sequence =
      built(asked({part("path", kSmallPng), text("q")}), RecordFormat::kMessages,
            test::toy_vision_model(test::toy_smolvlm()), {.loss_on = LossOnChoice::kAll});
  EXPECT_NE(shortened_text(sequence, "<image>")
                .find("<fake_token_around_image><row_1_col_1>{2}<fake_token_around_image>"
                      "<row_1_col_2>{2}\n"),
            std::string::npos);
  const SequenceMedia& image = sequence.media.at(0);
  EXPECT_EQ(image.num_tokens, 2 * image.rows);
  for (int64_t i = image.begin; i < image.end; ++i)
    EXPECT_EQ(sequence.mask[static_cast<size_t>(i)], 0);
}

// With labels on everything the tokens that the template writes around an image have none, either.
TEST(ImageTexts, AroundImagesHaveNoLabels) {
  const Sequence sequence =
      built(asked({part("path", kSmallPng), text("q")}), RecordFormat::kMessages,
            test::toy_vision_model(), {.loss_on = LossOnChoice::kAll});
  EXPECT_EQ(trained_text(sequence),
            "<|im_start|>user\n|q<|im_end|>\n<|im_start|>assistant\nIt is red.<|im_end|>\n");
}

TEST(ImageTexts, WithALabelFailTheRun) {
  const TextModel model = test::toy_vision_model();
  Example example{.tokens = {1, test::kImagePad, 2}, .labels = {kIgnoreIndex, 2, kIgnoreIndex}};
  EXPECT_NO_THROW(require_no_image_labels(example, model, "data.jsonl:3"));
  example.labels[0] = test::kImagePad;
  EXPECT_THROW(require_no_image_labels(example, model, "data.jsonl:3"), std::logic_error);
}

TEST(ImageTexts, OfSlicesHaveTheirOwnImages) {
  const Json record = {{"messages",
                        {{{"role", "user"}, {"content", {part("path", kSmallPng), text("a")}}},
                         {{"role", "assistant"}, {"content", "b"}},
                         {{"role", "user"}, {"content", {part("path", kLargePng), text("c")}}},
                         {{"role", "assistant"}, {"content", "d"}}}}};
  const auto sequences = SequenceBuilder(RecordFormat::kMessages, test::toy_vision_model(),
                                         {.thinking = config::Thinking::kSplit})
                             .build(record, "data.jsonl:3", image_folder());
  ASSERT_EQ(sequences.size(), 2U);
  EXPECT_EQ(sequences[0].media.size(), 1U);
  EXPECT_EQ(sequences[1].media.size(), 2U);
  EXPECT_EQ(trained_text(sequences[1]), "d<|im_end|>");
}

TEST(ImagePairs, HaveTheImagesOfTheirPrompt) {
  const Json prompt = {{{"role", "user"}, {"content", {{{"type", "image"}}, text("q")}}}};
  const auto answer = [](const char* words) {
    return Json::array({{{"role", "assistant"}, {"content", {text(words)}}}});
  };
  const Json record = {{"images", Json::array({kSmallPng})},
                       {"prompt", prompt},
                       {"chosen", answer("good")},
                       {"rejected", answer("bad")}};
  const auto build_pair = [&](const Json& of) {
    return SequenceBuilder(RecordFormat::kPreference, test::toy_vision_model(), {})
        .build(of, "data.jsonl:3", image_folder());
  };
  const auto pair = build_pair(record);
  ASSERT_EQ(pair.size(), 2U);
  EXPECT_EQ(trained_text(pair[0]), "good<|im_end|>\n");
  EXPECT_EQ(trained_text(pair[1]), "bad<|im_end|>\n");
  for (const Sequence& sequence : pair) {
    ASSERT_EQ(sequence.media.size(), 1U);
    EXPECT_EQ(sequence.media[0].width, 37);
  }
  EXPECT_EQ(pair[0].media[0].begin, pair[1].media[0].begin);
  const Json texts = {
      {"image", kSmallPng}, {"prompt", "<image>q"}, {"chosen", " a"}, {"rejected", " b"}};
  const auto of_texts = build_pair(texts);
  EXPECT_EQ(trained_text(of_texts.at(0)), " a</s>");
  EXPECT_EQ(of_texts.at(1).media.size(), 1U);
}

TEST(JudgedImages, AreThoseOfTheirPrompt) {
  const auto judged = [](const Json& record, RecordFormat format) {
    return SequenceBuilder(format, test::toy_vision_model(), {.form = config::ExampleForm::kJudged})
        .build(record, "data.jsonl:3", image_folder());
  };
  const auto answer = [](const char* words) {
    return Json::array({{{"role", "assistant"}, {"content", {text(words)}}}});
  };
  const Json prompt = {{{"role", "user"}, {"content", {{{"type", "image"}}, text("q")}}}};
  const auto expect_both = [&](const Json& record, const char* good, const char* bad) {
    const auto both = judged(record, RecordFormat::kPreference);
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(trained_text(both[0]), good);
    EXPECT_EQ(trained_text(both[1]), bad);
    for (const Sequence& sequence : both) {
      ASSERT_EQ(sequence.media.size(), 1U);
      EXPECT_LE(sequence.media[0].end, sequence.num_prompt_tokens);
    }
  };
  expect_both({{"images", Json::array({kSmallPng})},
               {"prompt", prompt},
               {"chosen", answer("good")},
               {"rejected", answer("bad")}},
              "good<|im_end|>\n", "bad<|im_end|>\n");
  expect_both({{"image", kSmallPng}, {"prompt", "<image>q"}, {"chosen", " a"}, {"rejected", " b"}},
              " a</s>", " b</s>");
  const auto unpaired = judged({{"images", Json::array({kSmallPng})},
                                {"prompt", prompt},
                                {"completion", answer("good")},
                                {"label", true}},
                               RecordFormat::kPromptCompletion);
  EXPECT_EQ(trained_text(unpaired.at(0)), "good<|im_end|>\n");
  EXPECT_EQ(unpaired.at(0).media.size(), 1U);
  Json conversation = asked({{{"type", "image"}}, text("q")});
  conversation["images"] = Json::array({kSmallPng});
  conversation["label"] = false;
  const auto last = judged(conversation, RecordFormat::kMessages);
  EXPECT_EQ(trained_text(last.at(0)), "It is red.<|im_end|>\n");
  EXPECT_EQ(last.at(0).media.size(), 1U);
  // The text of the prompt beside a whole conversation.
  const auto whole = judged({{"images", Json::array({kSmallPng})},
                             {"prompt", "q"},
                             {"completion", {prompt[0], answer("good")[0]}},
                             {"label", true}},
                            RecordFormat::kPromptCompletion);
  EXPECT_EQ(whole.at(0).media.size(), 1U);
}

TEST(ImagesInPlainTexts, StandAtTheirMarkers) {
  const Json record = {{"images", {kSmallPng, kSmallPng}},
                       {"prompt", "<image>q <|image_pad|>"},
                       {"completion", " a"}};
  const Sequence sequence = built(record, RecordFormat::kPromptCompletion);
  EXPECT_EQ(qwen_text(sequence), "<|vision_start|>{20}<|vision_end|>q {20} a");
  EXPECT_EQ(sequence.media.size(), 2U);
  const Json whole = {{"image", kSmallPng}, {"text", "a<image>b"}};
  const Sequence of_text = built(whole, RecordFormat::kText);
  EXPECT_EQ(qwen_text(of_text), "a<|vision_start|>{20}<|vision_end|>b");
  EXPECT_EQ(of_text.mask.front(), 1);
  EXPECT_EQ(std::count(of_text.mask.begin(), of_text.mask.end(), 0), 22);
  EXPECT_NE(error_of({{"text", "a<|image_pad|>"}}, RecordFormat::kText).find("the text contains"),
            std::string::npos);
  EXPECT_NE(error_of({{"text", "<image><image>a"}, {"image", kSmallPng}}, RecordFormat::kText)
                .find("columns have 1 image, and its texts have 2"),
            std::string::npos);
}

TEST(ImagesInPlainTexts, StandBeforeTextsWithoutMarkers) {
  const Json caption = {{"text", "a"}, {"images", {kSmallPng, kSmallPng}}};
  const Sequence sequence = built(caption, RecordFormat::kText);
  const std::string image = "<|vision_start|>{20}<|vision_end|>";
  EXPECT_EQ(qwen_text(sequence), image + image + "a");
  EXPECT_EQ(trained_text(sequence), "a");
  const Json answer = {{"prompt", "q"}, {"completion", " a"}, {"image", kSmallPng}};
  EXPECT_EQ(qwen_text(built(answer, RecordFormat::kPromptCompletion)), image + "q a");
}

TEST(BuiltInTemplates, WriteTheModelsImages) {
  const Json record = asked({part("path", kSmallPng), text("What colour?")});
  const auto rendered = [&](const char* name, const test::VisionFamily& family,
                            const std::string& feature) {
    const Sequence sequence =
        built(record, RecordFormat::kMessages, test::toy_vision_model(family, name));
    EXPECT_EQ(sequence.media.size(), 1U);
    return shortened_text(sequence, feature);
  };
  EXPECT_EQ(rendered("chatml", test::toy_qwen(), "<|image_pad|>"), kSmallText);
  EXPECT_EQ(rendered("vicuna", test::toy_llava(), "<image>"),
            "<s>USER: {4}\nWhat colour? ASSISTANT: It is red.</s>");
  for (const std::string& name : templates::builtin_template_names()) {
    SCOPED_TRACE(name);
    const std::string text = rendered(name.c_str(), test::toy_gemma3(), "<image_soft_token>");
    EXPECT_NE(text.find("{3}"), std::string::npos) << text;
    EXPECT_LT(text.find("{3}"), text.find("What colour?")) << text;
  }
}

TEST(BuiltInTemplates, WriteTextsAsForModelsOfText) {
  Json conversation = asked("q");
  conversation["messages"].insert(conversation["messages"].begin(),
                                  Json{{"role", "system"}, {"content", " s "}});
  for (const std::string& name : templates::builtin_template_names()) {
    TextModel plain = test::toy_vision_model(test::toy_qwen(), name);
    plain.chat_template =
        std::make_shared<const templates::ChatTemplate>(templates::builtin_template(name), name);
    const TextModel with_images = test::toy_vision_model(test::toy_qwen(), name);
    EXPECT_NE(plain.chat_template->source(), with_images.chat_template->source());
    const Sequence before = built(conversation, RecordFormat::kMessages, plain),
                   now = built(conversation, RecordFormat::kMessages, with_images);
    EXPECT_EQ(before.ids, now.ids) << name;
    EXPECT_EQ(before.mask, now.mask) << name;
  }
}

TEST(UnreadMedia, AreColumnsThatSeemToHoldImages) {
  const auto found = [](Json columns, const TextModel& model = test::toy_vision_model()) {
    Json record = asked("q");
    record.update(columns);
    return built(record, RecordFormat::kMessages, model).unread_media;
  };
  using Entries = std::vector<std::string>;
  const Json bytes = json_of_bytes(file_of(kSmallPng));
  EXPECT_EQ(found({{"picture", {{"bytes", bytes}, {"path", nullptr}}}}),
            Entries{"images: picture"});
  EXPECT_EQ(found({{"picture", bytes}}), Entries{"images: picture"});
  EXPECT_EQ(found({{"file_name", "a/B.JPG"}, {"id", 3}}), Entries{"images: file_name"});
  EXPECT_EQ(found({{"shots", {"1.webp", "2.webp"}}}), Entries{"images: shots"});
  EXPECT_EQ(found({{"sound", {{"bytes", json_of_bytes("RIFF\xFF")}, {"path", "a.wav"}}}}),
            Entries{});
  EXPECT_EQ(found({{"source", "see a.jpg\nand b.jpg"}, {"url", "a.html"}, {"ids", {1, 2}}}),
            Entries{});
  EXPECT_EQ(found({{"clip", "a.mp4"}}), Entries{}) << "the model reads no videos";
  EXPECT_EQ(found({{"clip", "a.mp4"}}, test::toy_vision_model(test::toy_qwen_of_videos())),
            Entries{"videos: clip"});
  EXPECT_EQ(found({{"file_name", "a.jpg"}, {"image", kSmallPng}}), Entries{}) << "it has an image";
  EXPECT_EQ(found({{"file_name", "a.jpg"}}, test::toy_model()), Entries{});
}

TEST(TextsOfVisionModels, AreAsBefore) {
  const Sequence sequence = built(asked("q"));
  EXPECT_EQ(sequence.text,
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nIt is red.<|im_end|>\n");
  EXPECT_TRUE(sequence.media.empty());
  EXPECT_EQ(trained_text(sequence), "It is red.<|im_end|>");
}

TEST(TextModels, RefuseImages) {
  const Json record = asked({part("path", kSmallPng), text("q")});
  EXPECT_NE(error_of(record, RecordFormat::kMessages, test::toy_model())
                .find("messages[0].content[0] is an image, and the model reads text alone"),
            std::string::npos);
  Json column = asked("<image>q");
  column["image"] = kSmallPng;
  EXPECT_EQ(built(column, RecordFormat::kMessages, test::toy_model()).unread_columns,
            std::vector<std::string>{"image"});
}

// What is asked is what a training example has before its answer.
TEST(ImagePrompts, AreThoseOfTraining) {
  const TextModel model = test::toy_vision_model();
  const Json record = asked({part("path", kSmallPng), text("q")});
  const Sequence trained = built(record, RecordFormat::kMessages, model);
  const PromptTokens prompt =
      PromptBuilder(model, /*chat=*/true).build(record, "data.jsonl:3", image_folder());
  ASSERT_LT(prompt.ids.size(), trained.ids.size());
  EXPECT_TRUE(std::equal(prompt.ids.begin(), prompt.ids.end(), trained.ids.begin()));
  EXPECT_EQ(trained.mask[prompt.ids.size() - 1], 0);
  EXPECT_EQ(trained.mask[prompt.ids.size()], 1);
  EXPECT_EQ(prompt.media, trained.media);
}

TEST(ImagePrompts, ReadNoFilesForOthers) {
  TextModel model = test::toy_vision_model();
  auto images = std::make_shared<ImageInput>(*model.images);
  images->reads_files = false;
  model.images = images;
  const PromptBuilder builder(model, /*chat=*/true);
  for (const char* place : {"path", "url", "image"})
    test::expect_error(
        [&] {
          builder.build(asked({part(place, kSmallPng), text("q")}), "messages", image_folder());
        },
        {"is not a data: URL"});
}

/// Else a run would train on texts alone.
TEST(ImageInput, IsRefusedWithoutTheProcessorsFiles) {
  test::VisionFamily qwen = test::toy_qwen();
  qwen.files.erase("preprocessor_config.json");
  EXPECT_EQ(test::toy_vision_model(qwen).images, nullptr) << "a model of text";
  qwen.files["config.json"]["vision_config"] = {{"hidden_size", 8}};
  const TextModel model = test::toy_vision_model(qwen);
  EXPECT_EQ(built(asked("q"), RecordFormat::kMessages, model).media.size(), 0U);
  Json column = asked("<image>q");
  column["image"] = kSmallPng;
  for (const Json& record : {column, asked({part("path", kSmallPng)})})
    test::expect_error([&] { built(record, RecordFormat::kMessages, model); },
                       {"no files of an image processor", "copy preprocessor_config.json"});
}

TEST(ImageInput, IsRefusedWhereARecordNeedsIt) {
  test::VisionFamily unknown = test::toy_qwen();
  unknown.files["preprocessor_config.json"]["image_processor_type"] = "OtherImageProcessor";
  const TextModel model = test::toy_vision_model(unknown);
  ASSERT_NE(model.images, nullptr);
  EXPECT_EQ(built(asked("q"), RecordFormat::kMessages, model).media.size(), 0U);
  test::expect_error(
      [&] {
        built(asked({part("path", kSmallPng), text("q")}), RecordFormat::kMessages, model);
      },
      {"OtherImageProcessor", "data.jsonl:3", "preprocessor_config.json"});
  test::VisionFamily other_id = test::toy_qwen();
  other_id.files["config.json"]["image_token_id"] = 5;
  EXPECT_NE(test::toy_vision_model(other_id).images->refusal->message().find(
                "has the id 262 in the tokenizer, and config.json says 5"),
            std::string::npos);
  test::VisionFamily no_token = test::toy_qwen();
  no_token.tokens.pop_back();
  EXPECT_NE(
      test::toy_vision_model(no_token).images->refusal->message().find("no token `<|image_pad|>`"),
      std::string::npos);
  EXPECT_EQ(test::toy_model().images, nullptr);
}

}  // namespace
}  // namespace sftrun::data
