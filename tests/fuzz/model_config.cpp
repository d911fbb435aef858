#include "fuzz.h"
#include "fuzz_entries.h"

/// config.json and the other JSON files of a model directory.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sftrun::weights::fuzz_json(sftrun::fuzz::bytes_of(data, size));
  return 0;
}
