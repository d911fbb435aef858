#include "fuzz.h"
#include "fuzz_entries.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sftrun::weights::fuzz_safetensors(sftrun::fuzz::bytes_of(data, size));
  return 0;
}
