#include "fuzz.h"
#include "images/png_checksums.h"
#include "sftrun/images/decode.h"
#include "sftrun/images/transform.h"

namespace {

constexpr int64_t kMaxPixels = 1 << 16;
constexpr int64_t kMaxSide = 100;  // after resizing

/// What is decoded has the size that the header says, and can be resized.
void read(std::span<const std::byte> bytes) {
  using namespace sftrun;
  fuzz::expecting_errors([&] {
    const images::ImageHeader header = images::read_header(bytes);
    const images::Image image = images::decode(bytes, {.max_pixels = kMaxPixels});
    if (image.width != header.width() || image.height != header.height()) __builtin_trap();
    const int64_t width = image.width * 7 % kMaxSide + 1, height = image.height * 5 % kMaxSide + 1;
    const auto filter = images::filter_numbered((width + height) % 6).value();
    images::resize(image, width, height, filter);
  });
}

}  // namespace

/// The bytes as an image file; a PNG file also with the right checksums.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = sftrun::fuzz::bytes_of(data, size);
  read(bytes);
  std::vector<std::byte> repaired(bytes.begin(), bytes.end());
  sftrun::images::fixtures::repair_checksums(repaired);
  read(repaired);
  return 0;
}
