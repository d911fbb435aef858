#include "sftrun/data/features.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include "media_text.h"
#include "sftrun/core/file.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/prompt.h"
#include "sftrun/data/sequence.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "toy_model.h"
#include "toy_vision_model.h"

namespace sftrun::data {
namespace {

/// A file as numpy.save writes it (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1).
std::string npy(const std::string& header, const std::vector<float>& values) {
  std::string file = "\x93NUMPY";
  file += '\x01';
  file += '\0';
  const auto size = static_cast<uint16_t>(header.size() + 1);
  file += static_cast<char>(size & 0xFF);
  file += static_cast<char>(size >> 8);
  file += header + '\n';
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return file;
}
std::string npy(int64_t rows, int64_t width) {
  std::vector<float> values;
  for (int64_t i = 0; i < rows * width; ++i) values.push_back(static_cast<float>(i));
  return npy(
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, width),
      values);
}

constexpr int64_t kFeatureWidth = 3;

class Features : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) {
    write_file_atomically(dir_ / name, content);
    return dir_ / name;
  }
  SequenceMedia media(const std::filesystem::path& path) const {
    const int64_t rows = num_feature_rows(path, world_);
    return {.media = {.path = path.string()},
            .projector = 0,
            .rows = rows,
            .num_tokens = world_.tokens > 0 ? world_.tokens : rows};
  }
  std::vector<float> read(const SequenceMedia& media) const {
    std::vector<float> values(static_cast<size_t>(media.num_tokens * kFeatureWidth));
    read_features(media, world_, values);
    return values;
  }
  std::string error_of_file(const std::string& content, const std::string& name = "a.npy") {
    const auto path = write(name, content);
    return test::error_of([&] { read(media(path)); });
  }

  test::TemporaryDirectory dir_;
  FeatureProjector world_{.name = "world", .input_width = kFeatureWidth, .hidden = 4};
};

TEST_F(Features, EveryRowIsATokenOrMeansOfRowsAre) {
  const auto path = write("a.npy", npy(5, kFeatureWidth));
  EXPECT_EQ(media(path).num_tokens, 5);
  EXPECT_EQ(read(media(path)).back(), 14);
  world_.tokens = 2;  // rows [0, 3) and [2, 5)
  EXPECT_EQ(read(media(path)), (std::vector<float>{3, 4, 5, 9, 10, 11}));
  world_.tokens = 1;
  EXPECT_EQ(read(media(path)), (std::vector<float>{6, 7, 8}));
}

TEST_F(Features, OtherShapesAreRows) {
  const auto one = write("one.npy",
                         npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", {1, 2, 3})),
             deep = write("deep.npy",
                          npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3), }",
                              {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(num_feature_rows(one, world_), 1);
  EXPECT_EQ(num_feature_rows(deep, world_), 2);
}

TEST_F(Features, WhatDoesNotFitNamesTheFile) {
  const std::string good = npy(2, kFeatureWidth);
  const auto says = [&](const std::string& content, std::initializer_list<std::string> parts) {
    const std::string error = error_of_file(content);
    EXPECT_NE(error.find("a.npy"), std::string::npos) << error;
    for (const std::string& part : parts) EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  says(npy(2, 4), {"[2, 4]", "world takes a width of 3"});
  says(npy(0, kFeatureWidth), {"[0, 3]"});
  says(good.substr(0, good.size() - 1), {"23 bytes of values", "24"});
  says(good + "x", {"25 bytes of values"});
  says(good.substr(0, 11), {"ends within its header"});
  says(good.substr(0, 40), {"ends within its header"});
  says("", {"neither .npy nor .safetensors"});
  says("features", {"neither .npy nor .safetensors"});
  says(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", std::vector<float>(6)),
       {"Fortran's order", "ascontiguousarray"});
  says(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }", std::vector<float>(6)),
       {"values of type <i4", "float32"});
  for (const char* shape : {"2, 3", "(2, x)", "(-2, 3)", "(2, 3", "(99999999999999999999, 3)"})
    says(npy(fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': {} }}", shape), {}),
         {"a.npy"});
  says(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 3), }", {}),
       {"the features have the shape"});
  std::vector<float> odd(6);
  odd[4] = std::numeric_limits<float>::quiet_NaN();
  says(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", odd),
       {"NaN or infinite"});
  world_.tokens = 3;
  says(good, {"2 rows", "makes 3 tokens", "at most 2"});
}

TEST_F(Features, AFileMayNotChangeAfterTokenising) {
  const auto path = write("a.npy", npy(5, kFeatureWidth));
  const SequenceMedia before = media(path);
  write("a.npy", npy(6, kFeatureWidth));
  EXPECT_NE(test::error_of([&] { read(before); }).find("they had 5 when the data were tokenized"),
            std::string::npos);
}

/// A mapping of a file that another program shortens would end the process.
TEST_F(Features, AFileMayBecomeShorterWhileItIsRead) {
  const int64_t rows = 200'000;
  const std::string content = npy(rows, kFeatureWidth);
  const auto path = write("a.npy", content);
  const SequenceMedia whole = media(path);
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    while (!ends) {
      std::filesystem::resize_file(path, 100);
      std::ofstream(path, std::ios::binary) << content;
    }
  });
  int num_errors = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end) {
    try {
      EXPECT_EQ(read(whole).back(), static_cast<float>(rows * kFeatureWidth - 1));
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("a.npy"), std::string::npos) << error.what();
      ++num_errors;
    }
  }
  ends = true;
  writer.join();
  EXPECT_GT(num_errors, 0);
}

TEST_F(Features, OfSafetensorsHaveAName) {
  const auto values = [](float first, int64_t rows) {
    return [=](void* to) {
      for (int64_t i = 0; i < rows * kFeatureWidth; ++i)
        static_cast<float*>(to)[i] = first + static_cast<float>(i);
    };
  };
  const auto path = dir_ / "a.safetensors";
  weights::write_safetensors(path, {{"first", DType::kF32, {1, kFeatureWidth}, values(100, 1)},
                                    {"features", DType::kF32, {2, kFeatureWidth}, values(7, 2)}});
  EXPECT_EQ(read(media(path)), (std::vector<float>{7, 8, 9, 10, 11, 12}));
  weights::write_safetensors(path, {{"one", DType::kF32, {1, kFeatureWidth}, values(5, 1)}});
  EXPECT_EQ(read(media(path)), (std::vector<float>{5, 6, 7}));
  weights::write_safetensors(path, {{"one", DType::kF32, {1, kFeatureWidth}, values(5, 1)},
                                    {"two", DType::kF32, {1, kFeatureWidth}, values(5, 1)}});
  EXPECT_NE(test::error_of([&] { media(path); }).find("2 tensors, and none is named `features`"),
            std::string::npos);
}

/// Larger than what is converted together.
TEST_F(Features, ManyRowsAreReadInPieces) {
  const int64_t rows = 100'000;
  std::string doubles;
  for (int64_t i = 0; i < rows * kFeatureWidth; ++i) {
    const auto value = static_cast<double>(i % 1000);
    doubles.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  const auto path =
      write("a.npy", npy(fmt::format("{{'descr': '<f8', 'fortran_order': False, 'shape': "
                                     "({}, {}), }}",
                                     rows, kFeatureWidth),
                         {}) +
                         doubles);
  const std::vector<float> values = read(media(path));
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], static_cast<float>(i % 1000)) << i;
}

// ---- In records

class FeatureRecords : public Features {
 protected:
  FeatureRecords() {
    write("two.npy", npy(2, kFeatureWidth));
    write("five.npy", npy(5, kFeatureWidth));
    write_file_atomically(dir_ / "wide.npy", npy(4, 7));
    model_.features = feature_input_of(
        {world_, {.name = "sound", .input_width = 7, .hidden = 4, .tokens = 1}}, *model_.tokenizer);
    stand_in_ = model_.features->text;
  }
  Sequence built(const std::string& record) const {
    const Json json = Json::parse(record);
    return SequenceBuilder(detect_format(json, "data.jsonl:3").format, model_, {})
        .build(json, "data.jsonl:3", dir_.path())
        .at(0);
  }
  std::string error_of_record(const std::string& record) const {
    return test::error_of([&] { built(record); });
  }
  std::string stand_ins(int count) const {
    std::string text;
    for (int i = 0; i < count; ++i) text += stand_in_;
    return text;
  }

  TextModel model_ = test::toy_model();
  std::string stand_in_;
};

TEST_F(FeatureRecords, PartsStandWhereTheyAreWritten) {
  const Sequence sequence = built(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "Look"},
          {"type": "features", "path": "two.npy", "projector": "world"}, {"type": "text", "text": "now"},
          {"type": "features", "path": "wide.npy", "projector": "sound"}]},
          {"role": "assistant", "content": "yes"}]})");
  EXPECT_NE(sequence.text.find("Look\n" + stand_ins(2) + "\nnow\n" + stand_ins(1) + "<|im_end|>"),
            std::string::npos)
      << sequence.text;
  ASSERT_EQ(sequence.media.size(), 2U);
  EXPECT_EQ(sequence.media[0].projector, 0);
  EXPECT_EQ(sequence.media[0].end - sequence.media[0].begin, 2);
  EXPECT_EQ(sequence.media[1].projector, 1);
  EXPECT_EQ(sequence.media[1].rows, 4);
  EXPECT_EQ(sequence.media[1].num_tokens, 1);
  for (const SequenceMedia& media : sequence.media) {
    EXPECT_FALSE(media.is_image());
    for (int64_t i = media.begin; i < media.end; ++i) {
      EXPECT_EQ(sequence.ids[static_cast<size_t>(i)], model_.features->token);
      EXPECT_EQ(sequence.mask[static_cast<size_t>(i)], 0);
    }
  }
}

TEST_F(FeatureRecords, ColumnsComeBeforeTheFirstQuestion) {
  for (const char* column : {R"({"world": "two.npy"})", R"([{"world": "two.npy"}])"}) {
    for (
        const std::string record :
        {R"("messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])",
         R"("conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}])",
         R"("prompt": "q", "completion": "a")", R"("instruction": "q", "output": "a")",
         R"("text": "q and a")"}) {
      const Sequence sequence =
          built("{\"features\": " + std::string(column) + ", " + record + "}");
      ASSERT_EQ(sequence.media.size(), 1U) << record;
      const size_t at = sequence.text.find(stand_ins(2)), question = sequence.text.find('q');
      ASSERT_NE(at, std::string::npos) << record;
      EXPECT_LT(at, question) << record;
      EXPECT_TRUE(sequence.unread_columns.empty()) << record;
    }
  }
  const Sequence sequence = built(
      R"({"features": [{"world": "two.npy"}, {"sound": "wide.npy", "world": "five.npy"}], "prompt": "q", "completion": "a"})");
  ASSERT_EQ(sequence.media.size(), 3U);
  EXPECT_EQ(sequence.media[2].begin, sequence.media[1].end);
}

TEST_F(FeatureRecords, BothAnswersOfAPairHaveThem) {
  const Json record = Json::parse(
      R"({"features": {"world": "two.npy"}, "prompt": "q", "chosen": "good", "rejected": "bad"})");
  const std::vector<Sequence> pair =
      SequenceBuilder(RecordFormat::kPreference, model_, {}).build(record, "f:1", dir_.path());
  ASSERT_EQ(pair.size(), 2U);
  for (const Sequence& sequence : pair) EXPECT_EQ(sequence.media.size(), 1U);
}

TEST_F(FeatureRecords, PromptsHaveThem) {
  const PromptTokens prompt =
      PromptBuilder(model_, /*chat=*/true)
          .build(Json::parse(R"({"prompt": "q", "features": {"world": "five.npy"}})"), "f:1",
                 dir_.path());
  ASSERT_EQ(prompt.media.size(), 1U);
  EXPECT_EQ(prompt.media[0].num_tokens, 5);
}

TEST_F(FeatureRecords, ImagesMayStandBesideThem) {
  TextModel model = test::toy_vision_model();
  model.features = feature_input_of({world_}, *model.tokenizer);
  const auto images = std::filesystem::path(SFTRUN_TEST_DATA) / "images/resize-37x29.png";
  const Json record = Json::parse(fmt::format(
      R"({{"messages": [{{"role": "user", "content": [{{"type": "features", "path": "two.npy"}},
          {{"type": "image", "path": "{}"}}, {{"type": "text", "text": "q"}}, {{"type": "features", "path": "five.npy"}}]}},
          {{"role": "assistant", "content": "a"}}]}})",
      images.string()));
  const Sequence sequence =
      SequenceBuilder(RecordFormat::kMessages, model, {}).build(record, "f:1", dir_.path()).at(0);
  ASSERT_EQ(sequence.media.size(), 3U);
  EXPECT_FALSE(sequence.media[0].is_image());
  EXPECT_TRUE(sequence.media[1].is_image());
  EXPECT_LE(sequence.media[0].end, sequence.media[1].begin);
  EXPECT_LE(sequence.media[1].end, sequence.media[2].begin);
}

TEST_F(FeatureRecords, MistakesNameTheRecord) {
  const auto in_part = [](const std::string& keys) {
    return R"({"messages": [{"role": "user", "content": [{"type": "features", )" + keys +
           R"(}]}, {"role": "assistant", "content": "a"}]})";
  };
  for (const auto& [record, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {in_part(R"("path": "two.npy")"), {"does not say which projector", "world, sound"}},
           {in_part(R"("path": "two.npy", "projector": "taste")"), {"taste", "world, sound"}},
           {in_part(R"("projector": "world")"), {"without a path"}},
           {in_part(R"("path": "none.npy", "projector": "world")"), {"none.npy"}},
           {in_part(R"("path": "wide.npy", "projector": "world")"), {"[4, 7]", "width of 3"}},
           {in_part(R"("path": "two.npy", "projector": "world", "scale": 2)"), {"\"scale\""}},
           {R"({"features": 3, "prompt": "q", "completion": "a"})", {"which projector"}},
           {R"({"features": {"world": 3}, "prompt": "q", "completion": "a"})", {"without a path"}},
           {"{\"prompt\": \"\xEE\x97\xB0"
            "0\xEE\x97\xB1\", \"completion\": \"a\"}",
            {"U+E5F0"}}}) {
    const std::string error = error_of_record(record);
    EXPECT_NE(error.find("data.jsonl:3"), std::string::npos) << error;
    for (const std::string& part : parts) EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

TEST_F(FeatureRecords, AModelWithoutProjectorsRefusesThem) {
  const std::string record =
      R"({"messages": [{"role": "user", "content": [{"type": "features", "path": "two.npy"}]},
          {"role": "assistant", "content": "a"}]})";
  for (const TextModel& model : {test::toy_model(), test::toy_vision_model()}) {
    const std::string error = test::error_of([&] {
      SequenceBuilder(RecordFormat::kMessages, model, {})
          .build(Json::parse(record), "data.jsonl:3", dir_.path());
    });
    EXPECT_NE(error.find("set model.projectors"), std::string::npos) << error;
  }
}

TEST_F(FeatureRecords, BatchesHaveThemByRows) {
  std::vector<Example> examples;
  for (const char* name : {"two.npy", "five.npy"}) {
    const Sequence sequence = built(fmt::format(
        R"({{"features": {{"world": "{}"}}, "prompt": "q", "completion": "a"}})", name));
    Example& example = examples.emplace_back();
    example.tokens.assign(sequence.ids.begin(), sequence.ids.end());
    example.labels.assign(example.tokens.size(), kIgnoreIndex);
    example.media = sequence.media;
  }
  const ExampleStore store = ExampleStore::in_memory(examples);
  EXPECT_FALSE(store.media_kinds().images);
  EXPECT_TRUE(store.media_kinds().features);
  const Batch batch = make_batch(store, {{0, 1}}, 0, 1);
  EXPECT_TRUE(batch.images.empty());
  EXPECT_TRUE(batch.image_rows.empty());
  ASSERT_EQ(batch.features.size(), 2U);
  EXPECT_EQ(batch.features[1].begin, std::ssize(examples[0].tokens) + examples[1].media[0].begin);
  EXPECT_EQ(batch.features[1].end - batch.features[1].begin, 5);
}

}  // namespace
}  // namespace sftrun::data
