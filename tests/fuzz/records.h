#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "fuzz.h"
#include "sftrun/data/arrow_table.h"

/// libsftrun_arrow.so's own table: these targets hold its readers.
extern "C" const sftrun::data::ArrowTable* sftrun_arrow_table();

namespace sftrun::fuzz {

/// Arrow's memory from malloc, which the sanitizer watches; slow where Arrow takes large blocks, as
/// it does for texts. Before the first use of Arrow.
inline void watch_arrows_memory() {
  ::setenv("ARROW_DEFAULT_MEMORY_POOL", "system", /*overwrite=*/1);
}

/// All records with their numbers, as text; nothing where the file is not sound. Rows are numbered
/// from 1 without a gap; one line may hold several records.
/// @param open makes the reader
template <typename Open>
std::optional<std::string> all_records(Open&& open) {
  constexpr int64_t kMaxRecords = 20'000;  // a few bytes can stand for very many rows
  std::string records;
  bool sound = false;
  expecting_errors([&] {
    const std::unique_ptr<data::RecordReader> reader = open();
    int64_t last = 0, count = 0;
    while (const auto block = reader->next()) {
      if (block->size() == 0) __builtin_trap();
      for (size_t i = 0; i < block->size() && count < kMaxRecords; ++i, ++count) {
        const int64_t number = block->number(i);
        const bool follows = reader->is_table() ? number == last + 1 : number >= last;
        if (number < 1 || !follows) __builtin_trap();
        last = number;
        const data::Json record = block->parse(i, "here");
        if (!record.is_object()) __builtin_trap();
        records += std::to_string(number) + record.dump() + "\n";
      }
      if (count >= kMaxRecords) break;
    }
    sound = true;
  });
  return sound ? std::optional(records) : std::nullopt;
}

/// Text that arrives a few bytes at a time, so that records lie across the ends of reads.
class Trickle final : public data::ByteStream {
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

}  // namespace sftrun::fuzz
