// Image processors in one thread; bench/image_processor_speed.py runs it beside transformers.
//
//     ninja -C build image_processor_speed && build/bin/image_processor_speed FOLDER FILE [--rounds N]
//
// FOLDER: of a model, with its processor's files. Prints {"process_ms", "tokens"}: the best of the rounds, from decoded pixels to float32 values.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "sftrun/core/file.h"
#include "sftrun/images/decode.h"
#include "sftrun/images/process.h"

int main(int argc, char** argv) {
  using namespace sftrun;
  if (argc < 3) return 2;
  const int rounds = argc > 4 && std::string(argv[3]) == "--rounds" ? std::stoi(argv[4]) : 20;
  const images::ImageProcessor processor = images::read_processor(argv[1]);
  const MappedFile file{argv[2]};
  const images::Image image = images::decode(file.bytes(), {}, argv[2]);
  double best = 1e9;
  int64_t tokens = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const images::ProcessedImage processed = images::process(processor, image);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
    tokens = processed.plan.num_tokens;
  }
  fmt::print("{{\"process_ms\": {:.4f}, \"tokens\": {}}}\n", best, tokens);
  return 0;
}
