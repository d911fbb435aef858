#include "sftrun/data/teacher_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/data/batch_plan.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

using Folder = test::TemporaryDirectory;

constexpr int64_t kTop = 2;

TeacherDescription description() {
  return {.k = kTop,
          .temperature = 1.5,
          .teacher = "models/teacher",
          .fingerprint = "f1",
          .dtype = "fp32",
          .rendered_at_unix_s = 1'700'000'000,
          .tokens = {"a", "b", "c", "\xff?"}};
}

Example scored_example(std::vector<int32_t> tokens, std::vector<bool> has_label) {
  Example example;
  example.tokens = std::move(tokens);
  example.labels.assign(example.tokens.size(), kIgnoreIndex);
  for (size_t i = 0; i + 1 < example.tokens.size(); ++i) {
    if (!has_label[i + 1]) continue;
    example.labels[i] = example.tokens[i + 1];
    ++example.label_tokens;
  }
  return example;
}

/// Three examples with 2, 0 and 1 labels.
ExampleStore examples() {
  return ExampleStore::in_memory({scored_example({1, 2, 3}, {false, true, true}),
                                  scored_example({2, 3}, {false, false}),
                                  scored_example({1, 2, 3}, {false, false, true})});
}

struct Rows {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
};

/// Values by which an example's rows are known again.
Rows rows_of(int64_t rows, int32_t first) {
  Rows made;
  for (int32_t i = 0; i < rows * kTop; ++i) made.tokens.push_back(first + i);
  for (int32_t i = 0; i < rows * (kTop + 1); ++i)
    made.log_probs.push_back(-0.25F * static_cast<float>(first + i));
  if (!made.log_probs.empty()) made.log_probs.back() = -INFINITY;
  return made;
}

void write_part(const std::filesystem::path& file, const ExampleStore& store,
                const std::vector<int64_t>& indices) {
  TeacherPartWriter writer(file, description());
  for (const int64_t index : indices) {
    const Rows rows =
        rows_of(store.stored(index).label_tokens, static_cast<int32_t>(10 * (index + 1)));
    writer.add(key_of_example(store, index), rows.tokens, rows.log_probs);
  }
  writer.finish();
}

void expect_rows(const TeacherScores& scores, const ExampleStore& store, int64_t index) {
  const int64_t count = store.stored(index).label_tokens;
  const Rows expected = rows_of(count, static_cast<int32_t>(10 * (index + 1)));
  TeacherRows rows;
  scores.append(key_of_example(store, index), count, rows);
  EXPECT_EQ(rows.tokens, expected.tokens);
  EXPECT_EQ(rows.log_probs, expected.log_probs);
}

TEST(TeacherScores, AreFoundByExamples) {
  const Folder folder;
  const ExampleStore store = examples();
  EXPECT_FALSE(TeacherScores::are_in(folder.path()));
  write_teacher(folder.path(), description());
  EXPECT_TRUE(TeacherScores::are_in(folder.path()));
  EXPECT_FALSE(TeacherScores(folder.path()).has(key_of_example(store, 0))) << "no part yet";
  write_part(folder / "00000-000.scores", store, {2, 0});
  {
    const TeacherScores scores(folder.path());
    EXPECT_FALSE(scores.has(key_of_example(store, 1)));
    expect_rows(scores, store, 0);
    expect_rows(scores, store, 2);
  }
  write_part(folder / "00000-001.scores", store, {1});
  const TeacherScores scores(folder.path());
  for (int64_t index = 0; index < 3; ++index) expect_rows(scores, store, index);
  EXPECT_EQ(scores.description().hash(), description().hash());
  EXPECT_EQ(scores.description().teacher, "models/teacher");
  EXPECT_EQ(scores.description().rendered_at_unix_s, 1'700'000'000);
}

/// The same tokens with other labels are another example; a selection has the same ones.
TEST(TeacherScores, KeysAreOfTokensAndLabels) {
  const ExampleStore store = examples(), some = store.select({2, 0});
  EXPECT_NE(key_of_example(store, 0), key_of_example(store, 2));
  EXPECT_EQ(key_of_example(store, 2), key_of_example(some, 0));
  EXPECT_EQ(key_of_example(store, 0), key_of_example(some, 1));
}

TEST(TeacherScores, AreInTheRowsOfBatches) {
  const Folder folder;
  ExampleStore store = examples();
  write_teacher(folder.path(), description());
  write_part(folder / "00000-000.scores", store, {0, 1, 2});
  const std::vector<Bin> bins = {{2, 1}, {0}};
  EXPECT_FALSE(make_batch(store, bins, 0, 2).teacher);
  store.set_teacher(std::make_shared<const TeacherScores>(folder.path()));
  const Batch batch = make_batch(store, bins, 0, 2);
  ASSERT_TRUE(batch.teacher);
  Rows expected = rows_of(1, 30);
  const Rows last = rows_of(2, 10);
  expected.tokens.insert(expected.tokens.end(), last.tokens.begin(), last.tokens.end());
  expected.log_probs.insert(expected.log_probs.end(), last.log_probs.begin(), last.log_probs.end());
  EXPECT_EQ(batch.teacher->k, kTop);
  EXPECT_EQ(batch.teacher->tokens, expected.tokens);
  EXPECT_EQ(batch.teacher->log_probs, expected.log_probs);
  EXPECT_EQ(make_batch(store, bins, 0, 2, {0}).teacher->tokens, rows_of(1, 30).tokens)
      << "an example that lost its labels has no rows";
  EXPECT_TRUE(make_batch(store, bins, 2, 1).teacher->tokens.empty()) << "an empty micro-batch";
  EXPECT_EQ(store.select({1}).teacher(), nullptr);
}

/// Each byte matters, and each missing one.
TEST(TeacherScores, DamagedPartsAreRefused) {
  const Folder folder;
  const ExampleStore store = examples();
  write_teacher(folder.path(), description());
  const std::filesystem::path file = folder / "00000-000.scores";
  write_part(file, store, {0, 1, 2});
  const std::string whole = read_text_file(file);
  const auto read = [&] {
    const TeacherScores scores(folder.path());
    for (int64_t index = 0; index < 3; ++index) {
      TeacherRows rows;
      if (!scores.has(key_of_example(store, index))) throw DataError("an example is gone", "", "");
      scores.append(key_of_example(store, index), store.stored(index).label_tokens, rows);
    }
  };
  EXPECT_NO_THROW(read());
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 1);
    write_file_atomically(file, other);
    EXPECT_THROW(read(), DataError) << at;
    write_file_atomically(file, whole.substr(0, at));
    EXPECT_THROW(read(), DataError) << at;
  }
}

/// Temporaries of a command that runs or was killed, and files of other people.
TEST(TeacherScores, OnlyPartsByTheirNamesAreRead) {
  EXPECT_EQ(name_of_part(0, 0), "00000-000.scores");
  EXPECT_EQ(name_of_part(123456, 1024), "123456-1024.scores");
  const Folder folder;
  const ExampleStore store = examples();
  write_teacher(folder.path(), description());
  const std::vector<std::filesystem::path> parts = {folder / name_of_part(0, 0),
                                                    folder / name_of_part(0, 1),
                                                    folder / name_of_part(123456, 1024)};
  for (size_t i = 0; i < parts.size(); ++i) write_part(parts[i], store, {static_cast<int64_t>(i)});
  for (const char* name :
       {".tmp-7-0-00001-000.scores", "film.scores", "0-0.scores", "00001-00x.scores",
        "00001.scores", "-.scores", ".scores", "00001-000.scores.txt", "x00001-000.scores"})
    write_file_atomically(folder / name, "not a part");
  EXPECT_EQ(parts_in(folder.path()), parts);
  const TeacherScores scores(folder.path());
  EXPECT_EQ(scores.num_parts(), 3);
  for (int64_t index = 0; index < 3; ++index) expect_rows(scores, store, index);
  EXPECT_NO_THROW(scores.require_whole());
}

/// Values are verified before a command counts them as scored, without a use of any.
TEST(TeacherScores, DamagedValuesAreFoundInAdvance) {
  const Folder folder;
  const ExampleStore store = examples();
  write_teacher(folder.path(), description());
  write_part(folder / name_of_part(0, 0), store, {1, 2});
  const std::filesystem::path file = folder / name_of_part(1, 0);
  write_part(file, store, {0});
  std::string bytes = read_text_file(file);
  constexpr size_t kAfterMagic = 8;
  bytes[kAfterMagic] = static_cast<char>(bytes[kAfterMagic] ^ 1);
  write_file_atomically(file, bytes);
  const TeacherScores scores(folder.path());
  EXPECT_TRUE(scores.has(key_of_example(store, 0)));
  test::expect_error<DataError>([&] { scores.require_whole(); },
                                {file.string(), "damaged", "remove it", "sftrun score"});
}

TEST(TeacherScores, AnotherTemperatureIsRefused) {
  EXPECT_NO_THROW(require_temperature(description(), 1.5, "run.yaml:3"));
  test::expect_error<ConfigError>(
      [] { require_temperature(description(), 2, "run.yaml:3"); },
      {"`train.kd_temperature` is 2", "written with 1.5", "run.yaml:3", "--temperature 2"});
}

TEST(TeacherScores, OtherTeachersAreRefused) {
  const Folder folder;
  const ExampleStore store = examples();
  test::expect_error<DataError>([&] { TeacherScores{folder.path()}; },
                                {"no teacher's scores", "sftrun score --topk"});
  TeacherDescription other = description();
  other.temperature = 1;
  write_teacher(folder.path(), other);
  write_part(folder / "00000-000.scores", store, {0});
  test::expect_error<DataError>([&] { TeacherScores{folder.path()}; },
                                {"do not belong to the teacher.json"});
  write_file_atomically(folder / "teacher.json", "{}");
  test::expect_error<DataError>([&] { TeacherScores{folder.path()}; },
                                {"not the description of a teacher's scores"});
}

TEST(TeacherScores, ANewNameIsTheSameTeacher) {
  TeacherDescription moved = description();
  moved.teacher = "elsewhere/teacher";
  moved.rendered_at_unix_s = 0;
  EXPECT_EQ(moved.hash(), description().hash());
  moved.fingerprint = "f2";
  EXPECT_NE(moved.hash(), description().hash());
}

}  // namespace
}  // namespace sftrun::data
