#include <gtest/gtest.h>

#include <fstream>

#include "images/image_files.h"
#include "sftrun/core/input_file.h"
#include "sftrun/core/strings.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

// Headers of files, of which no more is read than is needed.
namespace sftrun::images {
namespace {

using fixtures::image_cases;
using fixtures::image_path;

std::string text_of_image(const std::string& name) {
  return read_text_file(image_path(name));
}

ImageHeader header_from_memory(const std::string& bytes, const DecodeLimits& limits = {}) {
  return header_of_complete(std::as_bytes(std::span(bytes)), limits, "a.jpg");
}

void expect_same(const ImageHeader& a, const ImageHeader& b) {
  EXPECT_EQ(a.format, b.format);
  EXPECT_EQ(a.mode, b.mode);
  EXPECT_EQ(a.width(), b.width());
  EXPECT_EQ(a.height(), b.height());
  EXPECT_EQ(a.orientation, b.orientation);
}

/// A JPEG file with comments behind its first marker and bytes behind its scan's begin.
std::string padded_jpeg(const std::string& name, int num_comments, size_t num_pixels_bytes) {
  const std::string jpeg = text_of_image(name);
  std::string padded = jpeg.substr(0, 2);
  for (int i = 0; i < num_comments; ++i) padded += "\xFF\xFE\xFF\xFF" + std::string(0xFFFD, 'c');
  padded += jpeg.substr(2, jpeg.size() - 4);
  return padded + std::string(num_pixels_bytes, 'p') + "\xFF\xD9";
}

/// Bytes that this process has read so far; nothing where the system does not tell.
std::optional<int64_t> bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t count = 0;
  if (file >> name >> count && name == "rchar:") return count;
  return std::nullopt;
}

class CompleteHeaders : public testing::Test {
 protected:
  ImageHeader header(const std::string& bytes, const DecodeLimits& limits = {}) const {
    write_file_atomically(dir_ / "a.jpg", bytes);
    return header_of_complete(InputFile(dir_ / "a.jpg"), limits, "a.jpg");
  }
  test::TemporaryDirectory dir_;
};

TEST_F(CompleteHeaders, OfFilesAreThoseOfTheirBytes) {
  for (const auto& expected : image_cases("files")) {
    SCOPED_TRACE(expected.at("file"));
    const std::string bytes = text_of_image(expected.at("file"));
    expect_same(header_from_memory(bytes), read_header(std::as_bytes(std::span(bytes))));
    expect_same(header(bytes), header_from_memory(bytes));
  }
  for (const auto& refused : image_cases("refused")) {
    SCOPED_TRACE(refused.at("file"));
    const std::string bytes = text_of_image(refused.at("file"));
    EXPECT_EQ(test::error_of([&] {
                header(bytes);
                decode(std::as_bytes(std::span(bytes)), {}, "a.jpg");
              }),
              test::error_of([&] { decode(std::as_bytes(std::span(bytes)), {}, "a.jpg"); }));
  }
}

TEST_F(CompleteHeaders, OfLargeFilesAreTheSame) {
  constexpr size_t kMuch = 600'000;
  for (const char* name : {"exif-6.jpg", "exif-twice.jpg", "cmyk.jpg"}) {
    SCOPED_TRACE(name);
    const ImageHeader expected = header_from_memory(text_of_image(name));
    expect_same(header(padded_jpeg(name, 0, kMuch)), expected);
    expect_same(header(padded_jpeg(name, 3, kMuch)), expected);
    expect_same(header(padded_jpeg(name, 6, 0)),
                expected);  // a header that is larger than what is read first
    const std::string long_header = padded_jpeg(name, 6, 0);
    const std::string cut =
        long_header.substr(0, long_header.size() - text_of_image(name).size() + 100);
    EXPECT_EQ(test::error_of([&] { header(cut); }),
              test::error_of([&] { header_from_memory(cut); }));
    const std::string padding(5000, '\0');
    expect_same(header(long_header + padding), expected);
  }
}

TEST_F(CompleteHeaders, OfLargeJpegFilesNeedAFewOfTheirBytes) {
  constexpr size_t kMuch = size_t{8} << 20;
  write_file_atomically(dir_ / "b.jpg", padded_jpeg("exif-6.jpg", 1, kMuch));
  const InputFile file(dir_ / "b.jpg");
  const auto before = bytes_read();
  if (!before) GTEST_SKIP() << "no /proc/self/io";
  header_of_complete(file);
  EXPECT_LT(bytes_read().value() - *before, int64_t{1} << 20);
}

TEST_F(CompleteHeaders, WhatIsOverTheLimitIsNotRead) {
  const DecodeLimits limits{.max_bytes = 1000};
  const std::string bytes(2000, 'x');
  const std::string error = test::error_of([&] { header(bytes, limits); });
  EXPECT_EQ(error, test::error_of([&] { header_from_memory(bytes, limits); }));
  EXPECT_NE(error.find("2000 bytes, and the limit is 1000"), std::string::npos) << error;
}

TEST_F(CompleteHeaders, AFileThatBecomesShorterGivesAnError) {
  write_file_atomically(dir_ / "b.jpg", padded_jpeg("exif-6.jpg", 1, 600'000));
  const InputFile file(dir_ / "b.jpg");
  std::filesystem::resize_file(dir_ / "b.jpg", 4096);
  test::expect_error([&] { header_of_complete(file); }, {"became shorter", "b.jpg"});
}

}  // namespace
}  // namespace sftrun::images
