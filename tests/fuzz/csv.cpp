#include "memory_file.h"
#include "packed_text.h"
#include "records.h"

/// The first byte says which character is between fields (its lowest bit) and how long gzip members
/// are: compressed, a file has the same records.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  if (size == 0) return 0;
  static const fuzz::MemoryFile file;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  const auto read_all = [&](std::string_view bytes, data::Compression compression) {
    return fuzz::all_records([&] {
      return sftrun_arrow_table()->read_csv(file.holding(bytes), compression,
                                            (data[0] & 1) != 0 ? '\t' : ',');
    });
  };
  const std::string members = fuzz::packed(text, 1 + data[0] / 2, fuzz::gzip_member);
  if (read_all(text, data::Compression::kNone) != read_all(members, data::Compression::kGzip))
    __builtin_trap();
  return 0;
}
