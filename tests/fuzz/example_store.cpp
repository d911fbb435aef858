#include "sftrun/data/example_store.h"

#include <cstring>

#include "fuzz.h"
#include "memory_file.h"
#include "sftrun/core/xxh3.h"

namespace {

using sftrun::data::Example;
using sftrun::data::ExampleStore;
using sftrun::data::ExampleView;

/// With the checksums that its tokens, index and header have, which no mutation finds.
std::string with_checksums(std::string bytes) {
  constexpr size_t kFooter = 56, kCheck = 40;  // of the footer; in it, of the last checksum
  if (bytes.size() < kFooter) return bytes;
  const size_t end = bytes.size() - kFooter;
  uint64_t index = 0, header = 0;
  std::memcpy(&index, bytes.data() + end, sizeof index);
  std::memcpy(&header, bytes.data() + end + 24, sizeof header);
  if (index > header || header > end) return bytes;
  sftrun::BlockChecksums sums;
  sums.add(bytes.data(), index);
  const auto blocks = sums.finish();
  const size_t sum_bytes = blocks.size() * sizeof(uint64_t);
  if (sum_bytes > header - index) return bytes;
  if (sum_bytes > 0) std::memcpy(bytes.data() + header - sum_bytes, blocks.data(), sum_bytes);
  const uint64_t check =
      sftrun::xxh3_64(std::as_bytes(std::span(bytes)).subspan(index, end + kCheck - index));
  std::memcpy(bytes.data() + end + kCheck, &check, sizeof check);
  return bytes;
}

Example example_of(const ExampleView& view) {
  Example example{.record = view.stored->record,
                  .file = view.stored->file,
                  .judgement = static_cast<sftrun::data::Judgement>(view.stored->judgement),
                  .answer_begin = view.stored->answer_begin};
  for (int64_t i = 0; i < view.size(); ++i) {
    example.tokens.push_back(view.token(i));
    example.labels.push_back(view.label(i));
  }
  return example;
}

}  // namespace

/// A file of packed examples. What opens can be read to its end, and says the same when it is
/// stored again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  static const fuzz::MemoryFile file;
  const std::string bytes = with_checksums(std::string(fuzz::text_of(data, size)));
  fuzz::expecting_errors([&] {
    const ExampleStore store = ExampleStore::open(file.holding(bytes));
    if (!store.header().is_object()) __builtin_trap();
    constexpr int64_t kMaxTokens = 1 << 16;  // examples may overlap
    std::vector<Example> examples;
    int64_t num_tokens = 0;
    for (int64_t i = 0; i < store.size() && num_tokens < kMaxTokens; ++i) {
      num_tokens += store[i].size();
      examples.push_back(example_of(store[i]));
      for (const sftrun::data::SequenceMedia& image : store.media_of(i))
        if (image.media.path.empty() == (image.media.bytes == nullptr)) __builtin_trap();
    }
    const ExampleStore again = ExampleStore::in_memory(examples);
    for (int64_t i = 0; i < again.size(); ++i) {
      const Example read = example_of(again[i]);
      const auto& kept = examples[static_cast<size_t>(i)];
      if (read.tokens != kept.tokens || read.labels != kept.labels) __builtin_trap();
    }
  });
  return 0;
}
