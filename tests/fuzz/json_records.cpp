#include <algorithm>
#include <optional>
#include <string>

#include "fuzz.h"
#include "sftrun/data/record_reader.h"

namespace {

/// Text that arrives a few bytes at a time, so that records lie across the ends of reads.
class Trickle final : public sftrun::data::ByteStream {
 public:
  Trickle(std::string text, size_t step) : text_(std::move(text)), step_(step) {}
  size_t read(char* buffer, size_t size) override {
    const size_t count = std::min({size, step_, text_.size() - position_});
    std::copy_n(text_.data() + position_, count, buffer);
    position_ += count;
    return count;
  }
  uint64_t file_position() const override { return position_; }

 private:
  std::string text_;
  size_t step_, position_ = 0;
};

/// The records; nothing where one was not sound.
std::optional<std::string> read_all(const std::string& text, size_t step) {
  std::string records;
  bool sound = false;
  sftrun::fuzz::expecting_errors([&] {
    const auto reader =
        sftrun::data::read_json_records(std::make_unique<Trickle>(text, step), "data.json");
    while (const auto block = reader->next()) {
      if (block->size() == 0) __builtin_trap();
      for (size_t i = 0; i < block->size(); ++i)
        records += std::to_string(block->number(i)) + block->parse(i, "data.json").dump() + "\n";
    }
    sound = true;
  });
  return sound ? std::optional(records) : std::nullopt;
}

}  // namespace

/// JSON lines or one JSON array: the first byte says how many arrive in one read, and the records
/// are the same as of one read.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(sftrun::fuzz::text_of(data + 1, size - 1));
  if (read_all(text, 1 + data[0] % 64) != read_all(text, text.size() + 1)) __builtin_trap();
  return 0;
}
