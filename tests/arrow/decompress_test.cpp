#include <random>

#include "arrow_files.h"

namespace sftrun::arrow_readers {
namespace {

/// Text that compresses to about half its size.
std::string some_text(size_t size) {
  std::mt19937 random(7);
  std::string text(size, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % 16);
  return text;
}

class Decompress : public ::testing::Test {
 protected:
  std::string read(const std::string& bytes, Compression compression, size_t step = 1 << 16) {
    write_bytes(file_, bytes);
    const auto stream = decompress(file_, compression);
    std::string text, part(step, '\0');
    while (const size_t got = stream->read(part.data(), part.size())) {
      EXPECT_LE(got, part.size());
      text.append(part, 0, got);
    }
    EXPECT_EQ(stream->file_position(), bytes.size());
    return text;
  }
  DataError failure(const std::string& bytes, Compression compression) {
    return failure_of([&] { read(bytes, compression); });
  }

  test::TemporaryDirectory dir_;
  const std::filesystem::path file_ = dir_ / "a.gz";
};

TEST_F(Decompress, GivesTheTextInReadsOfAnySize) {
  const std::string text = some_text(300'000);  // its file is longer than a read of it
  const std::string gzip = gzipped(text), zstd = zstd_of(text);
  ASSERT_GT(gzip.size(), size_t{1} << 16);
  for (const size_t step : {7U, 1U << 16, 1U << 20}) {
    EXPECT_EQ(read(gzip, Compression::kGzip, step), text) << step;
    EXPECT_EQ(read(zstd, Compression::kZstd, step), text) << step;
    EXPECT_EQ(read(text, Compression::kNone, step), text) << step;
  }
}

TEST_F(Decompress, MembersFollowOneAnother) {
  const std::string zeros(512, '\0'), much(200'000, '\0');
  const std::string one = gzipped("one"), two = gzipped("two"), none = gzipped("");
  EXPECT_EQ(read(one + two, Compression::kGzip), "onetwo");
  EXPECT_EQ(read(one + none + two, Compression::kGzip), "onetwo");
  EXPECT_EQ(read(none, Compression::kGzip), "");
  EXPECT_EQ(read(one + zeros + two + zeros, Compression::kGzip), "onetwo") << "padding";
  EXPECT_EQ(read(one + much + two + much, Compression::kGzip, 2), "onetwo") << "longer than a read";
  EXPECT_EQ(read(zstd_of("one") + zstd_of("two"), Compression::kZstd), "onetwo");
}

TEST_F(Decompress, AnEmptyFileIsAnEmptyText) {
  for (const Compression compression : {Compression::kNone, Compression::kGzip, Compression::kZstd})
    EXPECT_EQ(read("", compression), "");
}

TEST_F(Decompress, ACutFileIsAnError) {
  const std::string gzip = gzipped(some_text(200)), zstd = zstd_of(some_text(200));
  for (size_t size = 1; size < gzip.size(); ++size)
    expect_damaged(failure(gzip.substr(0, size), Compression::kGzip), file_);
  for (size_t size = 1; size < zstd.size(); ++size)
    expect_damaged(failure(zstd.substr(0, size), Compression::kZstd), file_);
  expect_damaged(failure(gzip + gzip.substr(0, gzip.size() - 1), Compression::kGzip), file_);
}

TEST_F(Decompress, ADamagedFileIsAnError) {
  std::string changed = gzipped(some_text(200));
  changed[changed.size() - 6] ^= 1;  // of the check sum
  expect_damaged(failure(changed, Compression::kGzip), file_);
  expect_damaged(failure(gzipped("a") + "more", Compression::kGzip), file_);
  expect_damaged(failure("plain text", Compression::kGzip), file_);
  expect_damaged(failure("plain text", Compression::kZstd), file_);
}

TEST_F(Decompress, AFileThatDoesNotExistIsAnError) {
  const DataError error = failure_of([&] { decompress(file_, Compression::kGzip); });
  EXPECT_EQ(error.where(), file_.string());
  EXPECT_NE(error.message().find("cannot read: "), std::string::npos);
}

}  // namespace
}  // namespace sftrun::arrow_readers
