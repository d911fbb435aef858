// Image processors in one thread; bench/image_processor_speed.py runs it beside transformers.
//
//     ninja -C build image_processor_speed && build/bin/image_processor_speed FOLDER FILE [--rounds N]
//
// FOLDER: of a model, with its processor's files. Prints {"process_ms", "tokens"}: processor time of the best round, from decoded pixels to float32 values.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

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
  // As in training, where memory is used again (src/train/image_loading.cpp).
  images::ProcessMemory memory;
  std::vector<float> values;
  for (int i = 0; i < rounds; ++i) {
    const std::clock_t begin = std::clock();
    const images::ImagePlan plan = images::plan_image(processor, image.width, image.height);
    values.resize(static_cast<size_t>(plan.num_values()));
    images::process(processor, plan, image, values, {.memory = &memory});
    best = std::min(best, 1000.0 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    tokens = plan.num_tokens;
  }
  fmt::print("{{\"process_ms\": {:.4f}, \"tokens\": {}}}\n", best, tokens);
  return 0;
}
