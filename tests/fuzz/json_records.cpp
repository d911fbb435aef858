#include "records.h"

/// JSON lines or one JSON array: the first byte says how many arrive in one read, and the records
/// are the same as of one read.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  if (size == 0) return 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
  const auto read_all = [&](size_t step) {
    return fuzz::all_records([&] {
      return data::read_json_records(std::make_unique<fuzz::Trickle>(text, step), "data.json");
    });
  };
  if (read_all(1 + data[0] % 64) != read_all(text.size() + 1)) __builtin_trap();
  return 0;
}
