#include "memory_file.h"
#include "records.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  sftrun::fuzz::watch_arrows_memory();
  return 0;
}

/// Arrow's file format, or its stream format. Arrow's own libraries carry no instrumentation; what
/// they hand over is read by code that does.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  static const fuzz::MemoryFile file;
  fuzz::all_records(
      [&] { return sftrun_arrow_table()->read_arrow(file.holding(fuzz::text_of(data, size))); });
  return 0;
}
