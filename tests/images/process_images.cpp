// Processes image files as a model's folder says: tests/parity/image_processors_parity.py compares with transformers.
//
// Reads a JSON object a line:
//     {"folder": of the model, "file": the image, "output": where raw float32 values go; absent: the plan alone}
// or {"folder", "size": [width, height]} for the plan, and optionally "pan_and_scan": true, "backend": "torchvision", "max_pixels" and "longest_edge": caps. Writes a line each: the plan
// with the text of the image, or {"error"}.
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/images/decode.h"
#include "sftrun/images/process.h"
#include "sftrun/images/prompt.h"

namespace {

using namespace sftrun;
using nlohmann::json;

images::ImageProcessor processor_for(const json& request) {
  images::ImageProcessor processor =
      images::read_processor(request.at("folder").get<std::string>());
  processor.do_pan_and_scan = request.value("pan_and_scan", false);
  return images::with_caps(processor, {.max_pixels = request.value("max_pixels", int64_t{0}),
                                       .longest_edge = request.value("longest_edge", int64_t{0})});
}

json described(const images::ImagePlan& plan, const images::ImageProcessor& processor,
               const std::filesystem::path& folder) {
  json description = {{"shape", plan.shape(processor)},
                      {"tile_size", {plan.tile_height, plan.tile_width}},
                      {"tile_grid", {plan.tile_rows, plan.tile_columns}},
                      {"grid_thw", plan.grid_thw},
                      {"num_tokens", plan.num_tokens},
                      {"token_grid", {plan.token_rows, plan.token_columns}}};
  if (plan.num_tokens == 0) return description;
  const images::ImagePrompt prompt = images::read_prompt(folder, processor.kind);
  description["prompt"] = images::text_of_image(prompt, plan);
  description["feature"] = prompt.feature;
  return description;
}

json answered(const json& request) {
  const images::ImageProcessor processor = processor_for(request);
  const std::filesystem::path folder = request.at("folder").get<std::string>();
  const auto backend = request.value("backend", "pil") == "pil" ? images::Backend::kPil
                                                                : images::Backend::kTorchvision;
  if (request.contains("size")) {
    const auto [width, height] = request.at("size").get<std::array<int64_t, 2>>();
    return described(images::plan_image(processor, width, height, backend), processor, folder);
  }
  const auto path = request.at("file").get<std::string>();
  const MappedFile file{path};
  const images::ImageHeader header = images::read_header(file.bytes(), path);
  const images::ImagePlan plan =
      images::plan_image(processor, header.width(), header.height(), backend);
  if (request.contains("output")) {
    std::vector<float> values(static_cast<size_t>(plan.num_values()));
    images::process(processor, plan, images::decode(file.bytes(), {}, path), values,
                    {.backend = backend});
    write_file_atomically(
        request.at("output").get<std::string>(),
        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  return described(plan, processor, folder);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer = answered(json::parse(line));
    } catch (const Error& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
}
