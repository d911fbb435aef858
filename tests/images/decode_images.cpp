// Decodes and resizes images for tests/parity/images_parity.py: one JSON request a line in, one JSON answer a line out; pixels go to a
// file.
//
//   request: {"file", "output"}, and perhaps "resize": [width, height, filter's number]
//   answer:  {"format", "mode", "orientation", "stored": [width, height], "size": [width, height]} or {"error"}
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/images/decode.h"
#include "sftrun/images/transform.h"

namespace {

using Json = nlohmann::json;
using namespace sftrun;

Json answer(const Json& request) {
  const std::string path = request.at("file");
  const MappedFile file{path};
  const images::ImageHeader header = images::read_header(file.bytes(), path);
  images::Image image = images::decode(file.bytes(), {}, path);
  SFTRUN_CHECK_EQ(image.width, header.width());
  SFTRUN_CHECK_EQ(image.height, header.height());
  if (request.contains("resize")) {
    const Json& wanted = request.at("resize");
    image = images::resize(image, wanted.at(0), wanted.at(1),
                           images::filter_numbered(wanted.at(2)).value());
  }
  std::ofstream(request.at("output").get<std::string>(), std::ios::binary)
      .write(reinterpret_cast<const char*>(image.pixels.data()),
             static_cast<std::streamsize>(image.pixels.size()));
  return {{"format", images::name_of(header.format)},
          {"mode", images::name_of(header.mode)},
          {"orientation", header.orientation},
          {"stored", {header.stored_width, header.stored_height}},
          {"size", {image.width, image.height}}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    Json result;
    try {
      result = answer(Json::parse(line));
    } catch (const Error& error) {
      result = {{"error", error.message()}};
    }
    std::cout << result.dump() << std::endl;
  }
}
