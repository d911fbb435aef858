// Decoding and resizing of images in one thread; bench/image_speed.py runs it beside Pillow.
//
//     ninja -C build image_speed && build/bin/image_speed FILE... [--rounds N]
//
// Prints a JSON object a file: {"file", "decode_ms", "resize_ms"}: the best of the rounds; resize: bicubic, to 448 x 448.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/images/decode.h"
#include "sftrun/images/transform.h"

namespace {

using namespace sftrun;

template <class Work>
double best_ms(int rounds, const Work& work) {
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 20;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--rounds" && i + 1 < argc) {
      rounds = std::stoi(argv[++i]);
    } else {
      files.emplace_back(argv[i]);
    }
  }
  for (const std::string& path : files) {
    const MappedFile file{path};
    images::Image image, resized;
    const double decode = best_ms(rounds, [&] { image = images::decode(file.bytes(), {}, path); });
    const double resize = best_ms(
        rounds, [&] { resized = images::resize(image, 448, 448, images::Filter::kBicubic); });
    fmt::print("{{\"file\": \"{}\", \"decode_ms\": {:.4f}, \"resize_ms\": {:.4f}}}\n", path, decode,
               resize);
  }
  return 0;
}
