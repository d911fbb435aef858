#include "directory.h"

#include "fuzz.h"
#include "whole_model.h"

/// config.json, a NUL, model.safetensors: a model in whatever form they say, read whole.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  static const fuzz::Directory directory("model");
  const auto [config, tensors] = fuzz::both_of(fuzz::text_of(data, size));
  directory.write("config.json", config);
  directory.write("model.safetensors", tensors);
  fuzz::read_whole_model(directory.path());
  return 0;
}
