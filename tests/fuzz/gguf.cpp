#include "directory.h"
#include "fuzz.h"
#include "fuzz_entries.h"
#include "whole_model.h"

/// A file, as such and as a model.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  weights::fuzz_gguf(fuzz::bytes_of(data, size));
  static const fuzz::Directory directory("gguf");
  directory.write("model.gguf", fuzz::text_of(data, size));
  fuzz::read_whole_model(directory.path() / "model.gguf");
  return 0;
}
