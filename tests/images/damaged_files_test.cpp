// Files that were cut and changed end in an image or in a DataError. With SFTRUN_IMAGE_MUTATIONS=20000 and -fsanitize=address,undefined by
// hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "images/image_files.h"
#include "images/png_checksums.h"
#include "sftrun/core/error.h"

namespace sftrun::images {
namespace {

using FileBytes = std::vector<std::byte>;

class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  FileBytes of(FileBytes bytes, const FileBytes& other) {
    switch (below(6)) {
      case 0:  // cut
        bytes.resize(below(bytes.size() + 1));
        break;
      case 1:  // a part is missing
        erase_part(bytes);
        break;
      case 2: {  // a part of another file
        const size_t size = std::min({below(64) + 1, bytes.size(), other.size()});
        std::copy_n(other.begin() + offset(other.size() - size), size,
                    bytes.begin() + offset(bytes.size() - size));
        break;
      }
      default:
        change_values(bytes);
    }
    return bytes;
  }

 private:
  size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }
  std::ptrdiff_t offset(size_t last) { return static_cast<std::ptrdiff_t>(below(last + 1)); }

  void erase_part(FileBytes& bytes) {
    const auto begin = bytes.begin() + offset(bytes.size() - 1);
    bytes.erase(begin, begin + static_cast<std::ptrdiff_t>(std::min<size_t>(
                                   below(16) + 1, static_cast<size_t>(bytes.end() - begin))));
  }

  /// Headers more often than the rest; the greatest and the smallest values more often than others.
  void change_values(FileBytes& bytes) {
    constexpr unsigned char kValues[] = {0, 1, 0x7F, 0x80, 0xFF};
    for (size_t i = 0, count = below(8) + 1; i < count; ++i) {
      const size_t at = below(below(2) ? bytes.size() : std::min<size_t>(bytes.size(), 100));
      bytes[at] = std::byte{below(2) ? kValues[below(5)] : static_cast<unsigned char>(below(256))};
    }
  }

  std::mt19937 random_;
};

std::vector<FileBytes> fixture_files() {
  std::vector<FileBytes> files;
  for (const auto& expected : fixtures::image_cases("files"))
    files.push_back(fixtures::image_bytes(expected.at("file")));
  return files;
}

TEST(DamagedImages, AreDecodedOrRefused) {
  const char* wanted = std::getenv("SFTRUN_IMAGE_MUTATIONS");
  const int count = wanted ? std::atoi(wanted) : 600;
  const auto files = fixture_files();
  Damage damage(17);
  int accepted = 0;
  for (int i = 0; i < count; ++i) {
    const FileBytes& file = files[static_cast<size_t>(i) % files.size()];
    FileBytes bytes = damage.of(file, files[static_cast<size_t>(i) * 7 % files.size()]);
    // Exactly as many bytes: what is read behind them is found by the address sanitizer.
    bytes.shrink_to_fit();
    if (i % 2 == 0) fixtures::repair_checksums(bytes);
    try {
      const Image image = decode(bytes, {.max_pixels = 100'000});
      EXPECT_EQ(image.pixels.size(), static_cast<size_t>(image.width * image.height * 3));
      ++accepted;
    } catch (const DataError&) {
    }
  }
  // Neither all nor none: the changes are where it matters.
  EXPECT_GT(accepted, count / 10);
  EXPECT_LT(accepted, count * 9 / 10);
}

TEST(DamagedImages, EveryTruncationIsDecodedOrRefused) {
  for (const char* name : {"exif-6.jpg", "rgb-progressive.jpg", "raw-profile-deflated.png",
                           "2-8-interlaced.png", "exif.webp", "partial-frame.webp"}) {
    const FileBytes file = fixtures::image_bytes(name);
    for (size_t size = 0; size < file.size(); ++size) {
      const FileBytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      try {
        EXPECT_FALSE(decode(cut).pixels.empty());
        // At most the end of the file is not needed.
        EXPECT_GT(size + 24, file.size()) << name;
      } catch (const DataError&) {
      }
    }
  }
}

}  // namespace
}  // namespace sftrun::images
