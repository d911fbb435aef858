// Loads frames of videos as a model's folder says: tests/parity/videos_parity.py compares with transformers.
//
// Reads a JSON object a line: {"folder": of the model, "record": with "messages", "output": where raw float32 values of all frames go}.
// Writes a line each: {"grid_thw": of each group of frames, "num_tokens": likewise}, or {"error"}.
#include <iostream>
#include <nlohmann/json.hpp>

#include "resize_frame.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/prompt.h"
#include "sftrun/images/decode.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/hf_text_files.h"

namespace {

using namespace sftrun;
using nlohmann::json;

data::TextModel text_model(const std::filesystem::path& folder) {
  data::TextModel text = data::make_text_model(tokenizer::Tokenizer::from_directory(folder),
                                               tokenizer::chat_template_in(folder), {}, {}, {});
  text.images = data::image_input_of(folder, *text.tokenizer);
  return text;
}

json answered(const json& request) {
  const data::TextModel model = text_model(request.at("folder").get<std::string>());
  const data::PromptTokens prompt =
      data::PromptBuilder(model, /*chat=*/true)
          .build(data::Json::parse(request.at("record").dump()), "the record", {});
  json answer = {{"grid_thw", json::array()}, {"num_tokens", json::array()}};
  std::string values;
  for (const data::SequenceMedia& media : prompt.media) {
    if (!media.is_of_video()) continue;
    const images::VideoProcessor& processor = model.images->videos->processor;
    std::vector<images::Image> frames;
    for (const data::Media& file : data::files_of(media)) {
      const std::string bytes = data::read_media(file);
      frames.push_back(images::decode(std::as_bytes(std::span(bytes))));
    }
    const images::ProcessedImage processed = images::process_frames(
        processor, images::plan_frames(processor, media.width, media.height, media.frames.of_video),
        frames, train::resize_as_torchvision);
    const std::span<const float> own = processed.values;
    values.append(reinterpret_cast<const char*>(own.data()), own.size_bytes());
    answer["grid_thw"].push_back(media.grid_thw);
    answer["num_tokens"].push_back(media.num_tokens);
  }
  write_file_atomically(request.at("output").get<std::string>(), values);
  return answer;
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
