#include <gtest/gtest.h>

#include <fstream>

#include "data/toy_vision_model.h"
#include "fit.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/example_store.h"
#include "sftrun/data/media_faults.h"
#include "sftrun/data/sequence.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

std::filesystem::path pictures() {
  return std::filesystem::path(SFTRUN_TEST_DATA) / "images";
}

/// The model of a case of scripts/fixtures/make_image_records.py.
TextModel model_of_case(const Json& expected) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "tokenizer.json", expected.at("tokenizer").dump());
  for (const auto& [name, content] : expected.at("files").items())
    write_file_atomically(dir / name, content.dump());
  TextModel model = make_text_model(tokenizer::Tokenizer::from_directory(dir.path()), std::nullopt,
                                    {}, expected.at("chat_template"), {});
  model.images = image_input_of(dir.path(), *model.tokenizer);
  return model;
}

/// The answers of a record, as they are trained on.
std::string answers_of(const Json& messages) {
  std::string answers;
  for (const Json& message : messages)
    if (message.at("role") == "assistant")
      answers += message.at("content").at(0).at("text").get<std::string>() + "<|im_end|>";
  return answers;
}

std::string labelled_text(const Sequence& sequence) {
  std::string text;
  for (size_t i = 0; i < sequence.ids.size(); ++i)
    if (sequence.mask[i] != 0)
      text += sequence.text.substr(sequence.spans[i].begin,
                                   sequence.spans[i].end - sequence.spans[i].begin);
  return text;
}

std::vector<int32_t> feature_rows_of(const Batch& batch) {
  std::vector<int32_t> rows;
  for (const RowSpan& run : batch.image_rows)
    for (int32_t row = run.begin; row < run.end; ++row) rows.push_back(row);
  return rows;
}

/// Of the documents of a batch, one after another.
std::vector<int32_t> positions_of_records(const Json& records) {
  std::vector<int32_t> positions;
  for (size_t axis = 0; axis < 3; ++axis)
    for (const Json& record : records)
      for (const Json& position : record.at("positions").at(axis)) positions.push_back(position);
  return positions;
}

TEST(ImageRecords, GiveTheTokensAndPositionsOfTransformers) {
  const Json cases = Json::parse(
      read_text_file(std::filesystem::path(SFTRUN_TEST_DATA) / "image_records" / "cases.json"));
  ASSERT_GE(cases.at("cases").size(), 8U);
  const test::TemporaryDirectory dir;
  for (const Json& expected : cases.at("cases")) {
    SCOPED_TRACE(expected.at("name").get<std::string>());
    const TextModel model = model_of_case(expected);
    ASSERT_FALSE(model.images->refusal) << model.images->refusal->what();
    const SequenceBuilder builder(RecordFormat::kMessages, model, {});
    ExampleWriter writer(dir / "examples");
    std::vector<int32_t> rows;
    int32_t offset = 0;
    for (const Json& record : expected.at("records")) {
      const Json asked = {{"messages", record.at("messages")}};
      const Sequence sequence = builder.build(asked, "data.jsonl:3", pictures()).at(0);
      EXPECT_EQ(Json(sequence.ids), record.at("input_ids"));
      EXPECT_EQ(labelled_text(sequence), answers_of(record.at("messages")));
      Json sizes = Json::array();
      for (const SequenceMedia& image : sequence.media)
        sizes.push_back({image.width, image.height});
      EXPECT_EQ(sizes, record.at("images"));
      for (const Json& row : record.at("feature_rows")) rows.push_back(offset + row.get<int32_t>());
      offset += static_cast<int32_t>(sequence.ids.size());
      writer.add(to_example(sequence, 4096, writer.size()));
    }
    writer.finish(Json::object());
    const ExampleStore store = ExampleStore::open(dir / "examples");
    Batch batch = make_batch(store, {{0, 1, 2}}, 0, 1);
    EXPECT_EQ(feature_rows_of(batch), rows);
    ASSERT_EQ(batch.images.size(), 5U);
    EXPECT_EQ(batch.images[1].media.path, (pictures() / "resize-129x97.png").string());
    EXPECT_TRUE(batch.rope_positions.empty());
    if (expected.at("merge_side").is_null()) continue;
    set_rope_positions(batch, expected.at("merge_side"));
    EXPECT_EQ(batch.rope_positions, positions_of_records(expected.at("records")));
  }
}

/// An image of `num_tokens` tokens 7 in an example.
SequenceMedia stored_at(int64_t begin, int64_t num_tokens, Media media) {
  return {.media = std::move(media),
          .width = 3,
          .height = 2,
          .rows = 4,
          .num_tokens = num_tokens,
          .grid_thw = {1, 2, 2 * num_tokens},
          .begin = begin,
          .end = begin + num_tokens,
          .feature = 7};
}
Media held(const std::string& bytes) {
  return {.bytes = std::make_shared<const std::string>(bytes)};
}
Example pictured_example(std::vector<int32_t> tokens, std::vector<SequenceMedia> images) {
  Example example{.tokens = std::move(tokens), .media = std::move(images)};
  example.labels.assign(example.tokens.size(), kIgnoreIndex);
  return example;
}

class ImagesOfStores : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::vector<Example>& examples) const {
    ExampleWriter writer(dir_ / "examples");
    for (const Example& example : examples) writer.add(example);
    writer.finish({{"said", "beside"}});
    return dir_ / "examples";
  }
  test::TemporaryDirectory dir_;
};

/// Their place in the batch stays, so that all others have the same.
TEST_F(ImagesOfStores, OfLostExamplesAreBlankAndTheirTokensHaveNoLabels) {
  Example pictured = pictured_example({1, 7, 7, 2, 3}, {stored_at(1, 2, {.path = "a.png"})});
  pictured.labels[2] = 2, pictured.labels[3] = 3;
  Example other = pictured_example({4, 7, 5}, {stored_at(1, 1, {.path = "b.png"})});
  other.labels[1] = 5;
  const ExampleStore store = ExampleStore::open(write({pictured, other, pictured}));
  const std::vector<Bin> bins = {{0, 1}, {2}};
  const Batch whole = make_batch(store, bins, 0, 2), lost = make_batch(store, bins, 0, 2, {0});
  EXPECT_EQ(whole.label_tokens, 5);
  EXPECT_EQ(whole.num_lost, 0);
  EXPECT_EQ(lost.label_tokens, 3);
  EXPECT_EQ(lost.num_lost, 1);
  EXPECT_EQ(lost.tokens, whole.tokens);
  EXPECT_EQ(lost.document_keys, whole.document_keys);
  EXPECT_EQ(lost.image_rows, whole.image_rows);
  std::vector<bool> blank;
  for (const SequenceMedia& image : lost.images) blank.push_back(image.is_blank);
  EXPECT_EQ(blank, (std::vector<bool>{true, false, false}));
  for (size_t row = 0; row < lost.labels.size(); ++row)
    EXPECT_EQ(lost.labels[row], row < 5 ? kIgnoreIndex : whole.labels[row]) << row;
  EXPECT_EQ(document_key_of(lost, 4), 0);
  EXPECT_EQ(document_key_of(lost, 5), 1);
  EXPECT_EQ(document_key_of(make_batch(store, bins, 1, 1), 3), 2);
}

/// Of data sets with a weight, and of epochs that are shorter than a batch.
TEST_F(ImagesOfStores, ExamplesThatOccurTwiceCountTwice) {
  Example pictured = pictured_example({1, 7, 7, 2, 3}, {stored_at(1, 2, {.path = "a.png"})});
  pictured.labels[2] = 2, pictured.labels[3] = 3;
  Example other = pictured_example({4, 7, 5}, {stored_at(1, 1, {.path = "b.png"})});
  other.labels[1] = 5;
  const ExampleStore store = ExampleStore::open(write({pictured, other}));
  const std::vector<Bin> bins = {{0, 1}, {0}, {1, 1, 0}};
  for (const std::set<int64_t>& lost : {std::set<int64_t>{}, {0}, {1}, {0, 1}}) {
    const BinCounts counts = counts_among(store, bins, lost);
    const Batch whole = make_batch(store, bins, 0, 3), rest = make_batch(store, bins, 0, 3, lost);
    EXPECT_EQ(counts.documents, rest.num_lost);
    EXPECT_EQ(counts.label_tokens, whole.label_tokens - rest.label_tokens);
  }
  EXPECT_EQ(counts_among(store, bins, {0}).documents, 3);
  EXPECT_EQ(counts_among(store, bins, {0}).label_tokens, 6);
}

TEST_F(ImagesOfStores, ErrorsNameTheirRecord) {
  const MediaError error(DataError("the PNG file is damaged", "a.png"), 3);
  const DataError in_record = error_in_record(error, "data.jsonl:7", /*may_be_left_out=*/true);
  EXPECT_EQ(in_record.where(), "data.jsonl:7, a.png");
  EXPECT_EQ(in_record.fix(),
            "restore the file; or data.bad_records: skip goes on without the labels of this "
            "record");
  EXPECT_EQ(error_in_record(MediaError(DataError("x", "", "do"), 3), "data.jsonl:7", false).fix(),
            "do");
}

TEST_F(ImagesOfStores, AreKept) {
  const std::string bytes(1001, 'x');
  const std::vector<Example> examples = {
      pictured_example({1, 7, 7, 2}, {stored_at(1, 2, held(bytes))}), pictured_example({3}, {}),
      pictured_example({7, 1, 7, 7, 7},
                       {stored_at(0, 1, {.path = "a/b.png"}), stored_at(2, 3, held(bytes))}),
      pictured_example({7}, {stored_at(0, 1, held(""))})};
  const std::filesystem::path file = write(examples);
  for (const ExampleStore& store :
       {ExampleStore::open(file), ExampleStore::in_memory(examples),
        ExampleStore::concatenate({ExampleStore::open(file)}).select({0, 1, 2, 3})}) {
    for (size_t i = 0; i < examples.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      EXPECT_EQ(store.media_of(index), examples[i].media);
      EXPECT_EQ(store[index].size(), std::ssize(examples[i].tokens));
      EXPECT_EQ(store[index].token(0), examples[i].tokens[0]);
    }
  }
  EXPECT_LT(std::filesystem::file_size(file), 2 * bytes.size()) << "equal bytes are kept once";
}

TEST_F(ImagesOfStores, AreCheckedWhereTheyAreRead) {
  const std::filesystem::path file =
      write({pictured_example({1, 7}, {stored_at(1, 1, held(std::string(100, 'x')))})});
  const ExampleStore store = ExampleStore::open(file);
  std::fstream damaged(file, std::ios::binary | std::ios::in | std::ios::out);
  damaged.seekp(20);
  damaged.put('y');
  damaged.close();
  EXPECT_THROW(store.media_of(0), DataError);
  EXPECT_THROW(ExampleStore::open(file), DataError);
}

TEST(ImagesOfBatches, HaveRowsOfTheBatch) {
  const ExampleStore store = ExampleStore::in_memory(
      {pictured_example({1, 7, 7, 2}, {stored_at(1, 2, held("a"))}), pictured_example({5, 5}, {}),
       pictured_example({7, 6, 7, 4}, {stored_at(0, 3, held("b"))})});
  EXPECT_THROW(make_batch(store, {{2}}, 0, 1), std::logic_error) << "the third has two such tokens";
  SequenceMedia with_marker = stored_at(0, 2, held("b"));
  with_marker.end = 3;
  const ExampleStore good = ExampleStore::in_memory(
      {pictured_example({1, 7, 7, 2}, {stored_at(1, 2, held("a"))}), pictured_example({5, 5}, {}),
       pictured_example({7, 6, 7, 4}, {with_marker})});
  const Batch batch = make_batch(good, {{1, 0}, {2}}, 0, 2);
  EXPECT_EQ(batch.image_rows, (std::vector<RowSpan>{{3, 5}, {6, 7}, {8, 9}}));
  ASSERT_EQ(batch.images.size(), 2U);
  EXPECT_EQ(batch.images[1].begin, 6);
  EXPECT_EQ(batch.images[1].end, 9);
  EXPECT_EQ(read_media(batch.images[1].media), "b");
  Example labelled = pictured_example({1, 7, 7, 2}, {stored_at(1, 2, held("a"))});
  labelled.labels[0] = 7;
  EXPECT_THROW(make_batch(ExampleStore::in_memory({labelled}), {{0}}, 0, 1), std::logic_error);
}

TEST(ImagesOfBatches, SetPositionsOfTheirGrids) {
  SequenceMedia wide = stored_at(3, 6, held("a"));
  wide.grid_thw = {1, 4, 6};
  Batch batch = make_batch(
      ExampleStore::in_memory({pictured_example({1, 2, 3, 7, 7, 7, 7, 7, 7, 4, 5}, {wide}),
                               pictured_example({1, 2}, {})}),
      {{0, 1}}, 0, 1);
  set_rope_positions(batch, 2);
  // docs/vision-models.md, section 1.4
  EXPECT_EQ(batch.rope_positions,
            (std::vector<int32_t>{0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 0, 1,     // time
                                  0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 0, 1,     // height
                                  0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 0, 1}));  // width
  Batch texts = make_batch(ExampleStore::in_memory({pictured_example({1, 2}, {})}), {{0}}, 0, 1);
  set_rope_positions(texts, 2);
  EXPECT_TRUE(texts.rope_positions.empty());
}

TEST(ImagesOfLongSequences, AreNeverCut) {
  Sequence sequence{.ids = {1, 2, 7, 7, 7, 3, 4, 7}, .mask = {0, 1, 0, 0, 0, 1, 1, 0}};
  sequence.media = {stored_at(2, 3, held("a")), stored_at(7, 1, held("b"))};
  const auto fate = [&](int64_t length, config::TooLong too_long = config::TooLong::kTruncate) {
    return fate_of(sequence, {length, too_long}, "data.jsonl:3");
  };
  EXPECT_EQ(fate(8), Fate::kKept);
  EXPECT_EQ(fate(7), Fate::kTruncated);
  EXPECT_EQ(fate(5), Fate::kTruncated);
  EXPECT_EQ(fate(4), Fate::kTooLong);
  EXPECT_EQ(fate(3), Fate::kTooLong);
  EXPECT_EQ(fate(2), Fate::kTruncated);
  EXPECT_EQ(fate(4, config::TooLong::kDrop), Fate::kTooLong);
  test::expect_error([&] { fate(4, config::TooLong::kError); },
                     {"the record has 8 tokens", "data.jsonl:3"});
  EXPECT_EQ(to_example(sequence, 8, 0).media.size(), 2U);
  EXPECT_EQ(to_example(sequence, 7, 0).media.size(), 1U);
  EXPECT_EQ(to_example(sequence, 2, 0).media.size(), 0U);
}

}  // namespace
}  // namespace sftrun::data
