#include <gtest/gtest.h>

#include "data/toy_vision_model.h"
#include "fit.h"
#include "sftrun/core/error.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/preview.h"
#include "sftrun/data/prompt.h"
#include "sftrun/data/sequence.h"
#include "sftrun/images/encode.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

Json video_asked(Json content) {
  return {{"messages",
           {{{"role", "user"}, {"content", std::move(content)}},
            {{"role", "assistant"}, {"content", "It falls."}}}}};
}
Json words(const char* text) {
  return {{"type", "text"}, {"text", text}};
}

/// Frames of 16 x 8 pixels beside the record: 0.jpg to 4.jpg, and other.jpg of 8 x 8.
class VideoRecords : public ::testing::Test {
 protected:
  VideoRecords() {
    for (int i = 0; i < 5; ++i) {
      images::Image frame(16, 8);
      frame.pixels[0] = static_cast<uint8_t>(50 * i);
      write_file_atomically(dir_ / fmt::format("{}.jpg", i), images::encode_jpeg(frame));
    }
    write_file_atomically(dir_ / "other.jpg", images::encode_jpeg(images::Image(8, 8)));
  }

  static Json frames(int count) {
    Json files = Json::array();
    for (int i = 0; i < count; ++i) files.push_back(fmt::format("{}.jpg", i));
    return files;
  }
  static Json video(int count, Json more = Json::object()) {
    more["type"] = "video", more["video"] = frames(count);
    return more;
  }
  Sequence built(const Json& record, RecordFormat format = RecordFormat::kMessages) const {
    return SequenceBuilder(format, model_, {}).build(record, "data.jsonl:3", dir_.path()).at(0);
  }
  std::string error_of(const Json& record) const {
    return test::error_of([&] { built(record); });
  }
  static int64_t count_of(const Sequence& sequence, int32_t token) {
    return std::count(sequence.ids.begin(), sequence.ids.end(), token);
  }

  test::TemporaryDirectory dir_;
  TextModel model_ = test::toy_vision_model(test::toy_qwen_of_videos());
};

TEST_F(VideoRecords, OfEveryFormAreRead) {
  const Json marked = {{{"role", "user"}, {"content", "<video>\nWhat happens?"}},
                       {{"role", "assistant"}, {"content", "It falls."}}};
  const Json of_parts[] = {
      video(3, {{"fps", 2}}),
      video(3, {{"sample_fps", 2.0}}),
      video(3, {{"timestamps", {0, 0.5, 1}}}),
      {{"type", "video"}, {"frames", frames(3)}, {"fps", 2}, {"path", nullptr}},
      {{"video", frames(3)}, {"fps", 2}}};
  Json forms[] = {video_asked({of_parts[0], words("What happens?")}),
                  video_asked({of_parts[1], words("What happens?")}),
                  video_asked({of_parts[2], words("What happens?")}),
                  video_asked({of_parts[3], words("What happens?")}),
                  video_asked({of_parts[4], words("What happens?")}),
                  {{"messages", marked}, {"videos", {{{"frames", frames(3)}, {"fps", 2}}}}},
                  {{"messages", marked}, {"video", {{"video", frames(3)}, {"fps", 2}}}}};
  const Sequence first = built(forms[0]);
  EXPECT_EQ(first.text,
            "<|im_start|>user\n<|vision_start|><|video_pad|><|video_pad|><|video_pad|>"
            "<|video_pad|><|vision_end|>What happens?<|im_end|>\n<|im_start|>assistant\nIt "
            "falls.<|im_end|>\n");
  ASSERT_EQ(first.media.size(), 2U);
  const SequenceMedia &pair = first.media[0], &rest = first.media[1];
  EXPECT_EQ(pair.media.path, (dir_ / "0.jpg").string());
  ASSERT_EQ(pair.frames.further.size(), 1U);
  EXPECT_EQ(pair.frames.further[0].path, (dir_ / "1.jpg").string());
  EXPECT_TRUE(rest.frames.further.empty());
  EXPECT_EQ(pair.num_tokens, 2);
  EXPECT_EQ(rest.begin, pair.end);
  EXPECT_EQ(pair.frames.time, 0);
  EXPECT_EQ(rest.frames.time, 4);  // a second behind
  EXPECT_EQ(rest.frames.first, 2);
  for (const Json& form : forms) {
    SCOPED_TRACE(form.dump());
    const Sequence sequence = built(form);
    EXPECT_EQ(sequence.text, first.text);
    EXPECT_EQ(sequence.media, first.media);
    EXPECT_TRUE(sequence.unread_columns.empty());
  }
  const Sequence usual = built(video_asked({video(5), words("q")}));
  EXPECT_EQ(usual.media.at(2).frames.time, 0) << "without a rate, 24 a second";
}

TEST_F(VideoRecords, OfTextsHaveMarkers) {
  const Json record = {
      {"prompt", "a <video> b"}, {"completion", " c"}, {"videos", Json::array({frames(2)})}};
  const Sequence sequence = built(record, RecordFormat::kPromptCompletion);
  EXPECT_TRUE(
      sequence.text.starts_with("a <|vision_start|><|video_pad|><|video_pad|><|vision_end|> b c"))
      << sequence.text;
  ASSERT_EQ(sequence.media.size(), 1U);
  EXPECT_EQ(sequence.ids[static_cast<size_t>(sequence.media[0].begin)], test::kVideoPad);
}

TEST_F(VideoRecords, NeverHaveLabels) {
  for (const auto loss_on : {config::LossOnChoice::kAll, config::LossOnChoice::kAssistant}) {
    const Sequence sequence =
        SequenceBuilder(RecordFormat::kMessages, model_, {.loss_on = loss_on})
            .build(video_asked({words("a"), video(4), words("b")}), "data.jsonl:3", dir_.path())
            .at(0);
    for (size_t i = 0; i < sequence.ids.size(); ++i) {
      const bool is_marker =
          sequence.ids[i] == test::kVideoPad || sequence.ids[i] == test::kVisionStart;
      EXPECT_FALSE(is_marker && sequence.mask[i] != 0) << i;
    }
  }
}

TEST_F(VideoRecords, AreRefusedWithAReason) {
  const auto expect = [&](const Json& record, std::initializer_list<const char*> parts) {
    const std::string error = error_of(record);
    for (const char* part : parts) EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect(video_asked({{{"type", "video"}, {"video", "clip.MP4"}}}),
         {"messages[0].content[0] is a video file, and videos are not decoded: clip.MP4",
          "ffmpeg -i clip.MP4"});
  expect({{"messages", video_asked("<video>q")["messages"]}, {"videos", {"clip.mp4"}}},
         {"videos[0] is a video file"});
  expect(video_asked({{{"type", "video"}, {"video", Json::array()}}}),
         {"is a video without frames"});
  expect(video_asked({{{"type", "video"}}}), {"is a video without frames"});
  expect(video_asked({{{"type", "video"}, {"video", {"0.jpg", "other.jpg"}}}}),
         {"frame 1 has 8 x 8 pixels, and frame 0 has 16 x 8", "give frames of one size"});
  expect(video_asked({{{"type", "video"}, {"video", {"0.jpg", "none.jpg"}}}}),
         {"frame 1", "none.jpg"});
  expect(video_asked({video(2, {{"fps", 0}})}), {"\"fps\" must be a number above 0"});
  expect(video_asked({video(2, {{"fps", 1e-9}})}),
         {"is too long: its last frame is at 1000000000 s"});
  expect(video_asked({video(2, {{"timestamps", {1}}})}),
         {"\"timestamps\" must be a list of 2 numbers"});
  expect(video_asked({video(2, {{"timestamps", {1, 0.5}}})}), {"in order"});
  expect(video_asked({video(2, {{"max_pixels", 9}})}),
         {"has \"max_pixels\" beside its video, which is not read"});
  expect({{"messages", video_asked("<video><video>")["messages"]},
          {"videos", Json::array({frames(2)})}},
         {"the record's columns have 1 video, and its texts have 2"});
  expect(video_asked("<|video_pad|>"), {"contains `<|video_pad|>`, which stands for a video"});
}

TEST_F(VideoRecords, OfOtherModelsAreToBeImages) {
  model_ = test::toy_vision_model(test::toy_gemma3());
  const std::string error = error_of(video_asked({video(2), words("q")}));
  EXPECT_NE(error.find("the record has a video: videos are not read for models with the image "
                       "processor of Gemma 3"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("give the frames as images"), std::string::npos) << error;
  EXPECT_EQ(built(video_asked({{{"type", "image"}, {"path", "0.jpg"}}, words("q")})).media.size(),
            1U);
}

TEST_F(VideoRecords, OfQwen3HaveTheirTimesInTheText) {
  model_ = test::toy_vision_model(test::toy_qwen_of_videos("qwen3_vl"));
  const Sequence sequence = built(video_asked({video(3, {{"fps", 2}}), words("q")}));
  EXPECT_NE(sequence.text.find("<|vision_start|><0.2 seconds><|vision_start|><|video_pad|>"
                               "<|video_pad|><|vision_end|><1.0 seconds><|vision_start|>"),
            std::string::npos)
      << sequence.text;
  ASSERT_EQ(sequence.media.size(), 2U);
  EXPECT_EQ(sequence.media[0].frames.time, -1);
  EXPECT_EQ(sequence.media[0].end, sequence.media[1].begin);
}

TEST_F(VideoRecords, OfSmolVlmTakeTheTemplateForVideos) {
  test::VisionFamily family = test::toy_smolvlm();
  family.tokens.push_back("<end_of_utterance>");
  model_ = test::toy_vision_model(family);
  const Sequence sequence = built(video_asked({video(2, {{"fps", 0.5}}), words("q")}));
  EXPECT_TRUE(sequence.text.starts_with(
      "<|im_start|>User: You are provided the following series of two frames from a 0:00:02 "
      "[H:MM:SS] video.\n\nFrame from 00:00:<fake_token_around_image><global-img><image><image>"
      "<fake_token_around_image>\nFrame from 00:02:"))
      << sequence.text;
  EXPECT_TRUE(
      sequence.text.ends_with("\n\nq<end_of_utterance>\nAssistant: It "
                              "falls.<end_of_utterance>\n"))
      << sequence.text;
  EXPECT_EQ(sequence.media.size(), 2U);
  EXPECT_EQ(sequence.media[1].num_tokens, 2);
  const std::string image =
      built(video_asked({{{"type", "image"}, {"path", "0.jpg"}}, words("q")})).text;
  EXPECT_TRUE(image.starts_with("<|im_start|>user\n")) << image;
}

TEST_F(VideoRecords, AreNeverCutBetweenFrames) {
  const Sequence sequence = built({{"messages",
                                    {{{"role", "user"}, {"content", "q"}},
                                     {{"role", "assistant"}, {"content", "a"}},
                                     {{"role", "user"}, {"content", Json::array({video(4)})}},
                                     {{"role", "assistant"}, {"content", "b"}}}}});
  ASSERT_EQ(sequence.media.size(), 2U);
  const auto fate = [&](int64_t length) {
    return fate_of(sequence, {length, config::TooLong::kTruncate}, "data.jsonl:3");
  };
  EXPECT_EQ(fate(sequence.media[0].begin), Fate::kTruncated);
  EXPECT_EQ(fate(sequence.media[0].end), Fate::kTooLong);
  EXPECT_EQ(fate(sequence.media[1].end), Fate::kTruncated);
}

TEST_F(VideoRecords, AreKeptInStoresAndHavePositions) {
  std::vector<Example> examples;
  for (const int count : {3, 5})
    examples.push_back(to_example(
        built(video_asked({words("a"), video(count, {{"fps", 2}}), video(2), words("b")})), 512,
        0));
  ExampleWriter writer(dir_ / "examples");
  for (const Example& example : examples) writer.add(example);
  writer.finish(Json::object());
  const ExampleStore store = ExampleStore::open(dir_ / "examples");
  for (int64_t i = 0; i < 2; ++i)
    EXPECT_EQ(store.media_of(i), examples[static_cast<size_t>(i)].media);
  EXPECT_EQ(store.media_of(1).back().frames.video, 2);
  Batch batch = make_batch(store, {{0, 1}}, 0, 1);
  set_rope_positions(batch, 2);
  const auto position = [&](int64_t axis, int64_t row) {
    return batch.rope_positions[static_cast<size_t>(axis * batch.num_tokens() + row)];
  };
  // get_rope_index: a video's frames are at one place, and what follows is behind its width, not its time.
  const int64_t begin = batch.images[0].begin, place = position(0, begin);
  EXPECT_EQ(position(0, begin + 2), place + 4);
  EXPECT_EQ(position(1, begin + 2), place);
  EXPECT_EQ(position(2, begin + 3), place + 1);
  EXPECT_EQ(position(0, begin + 4), place + 2);  // <|vision_end|>
  const auto& third = batch.images[3 + 2];       // of the second document
  EXPECT_EQ(third.frames.time, 8);
  EXPECT_EQ(position(0, third.begin), position(0, batch.images[3].begin) + 8);
}

TEST_F(VideoRecords, ArePreviewed) {
  write_file_atomically(dir_ / "data.jsonl",
                        video_asked({video(5, {{"fps", 1}}), words("q")}).dump());
  config::RunConfig config;
  config.model.max_seq_len = 512;
  config::DataSource source;
  source.path = (dir_ / "data.jsonl").string();
  const Preview shown = preview_dataset(config, source, /*is_validation=*/false, model_, 10);
  const std::string text = preview_text(shown, model_, /*colour=*/false);
  EXPECT_NE(text.find("video 1: 5 frames, "), std::string::npos) << text;
  EXPECT_NE(text.find("4.jpg, 16 x 8 pixels, 6 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("⟨<|video_pad|> x 6⟩"), std::string::npos) << text;
  const Json sequence = preview_json({shown}, model_)["data_sets"][0]["sequences"][0];
  EXPECT_TRUE(sequence.at("images").empty());
  EXPECT_EQ(sequence.at("videos").at(0).at("frames").size(), 5U);
  EXPECT_EQ(sequence.at("videos").at(0).at("num_tokens"), 6);
  const std::string page = preview_html({shown}, model_, "data");
  size_t pictures = 0;
  for (size_t at = page.find("src=\"data:"); at != std::string::npos;
       at = page.find("src=\"data:", at + 1))
    ++pictures;
  EXPECT_EQ(pictures, 4U) << "some of the frames";
}

}  // namespace
}  // namespace sftrun::data
