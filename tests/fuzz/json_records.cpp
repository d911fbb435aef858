#include "records.h"

/// JSON lines or one JSON array, or lines of text: the first byte says how many bytes arrive at a
/// time and make a block, and the records are the same as of one block.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  if (size == 0) return 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
  const auto read_all = [&](size_t step, const data::ReadSizes& sizes) {
    return fuzz::all_records([&] {
      return data::read_json_records(std::make_unique<fuzz::Trickle>(text, step), "data.json",
                                     static_cast<data::LineForm>(data[0] % 3), sizes);
    });
  };
  const size_t whole = text.size() + 4;  // a byte-order mark has to fit
  const data::ReadSizes small{.read_bytes = 4 + data[0] / 4U, .block_bytes = 1 + data[0] % 32U};
  if (read_all(1 + data[0] % 16, small) != read_all(whole, {whole, whole})) __builtin_trap();
  return 0;
}
