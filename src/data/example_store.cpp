#include "sftrun/data/example_store.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>

#include "sftrun/core/error.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/parallel_for.h"

namespace sftrun::data {
namespace {

constexpr std::string_view kMagic = "sftrunEX";
constexpr size_t kFlushTokens = size_t{1} << 20;

struct Footer {
  uint64_t index_offset = 0, num_examples = 0, header_offset = 0, header_size = 0, check = 0;
  std::array<char, 8> magic{};
};
static_assert(sizeof(Footer) == 48);

uint64_t num_blocks_of(uint64_t bytes) {
  return (bytes + BlockChecksums::kBytes - 1) / BlockChecksums::kBytes;
}

[[noreturn]] void fail_damaged(const std::filesystem::path& file) {
  throw DataError("not a file of tokenized examples, or damaged", file.string(),
                  "rerun the same command: damaged files are tokenized again");
}

/// @param bytes a whole file   @return its footer, in which nothing points outside
std::optional<Footer> footer_of(std::span<const std::byte> bytes) {
  Footer footer;
  if (bytes.size() < kMagic.size() + sizeof footer) return std::nullopt;
  const uint64_t end = bytes.size() - sizeof footer;
  std::memcpy(&footer, bytes.data() + end, sizeof footer);
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0 ||
      std::memcmp(footer.magic.data(), kMagic.data(), kMagic.size()) != 0)
    return std::nullopt;
  const bool is_in_order =
      footer.index_offset % alignof(StoredExample) == 0 && footer.index_offset >= kMagic.size() &&
      footer.header_offset >= footer.index_offset && footer.header_offset <= end &&
      footer.header_size == end - footer.header_offset;
  if (!is_in_order) return std::nullopt;
  const uint64_t sums = num_blocks_of(footer.index_offset) * sizeof(uint64_t),
                 between = footer.header_offset - footer.index_offset;
  const bool is_filled = between >= sums && (between - sums) % sizeof(StoredExample) == 0 &&
                         (between - sums) / sizeof(StoredExample) == footer.num_examples;
  const uint64_t checked = end + offsetof(Footer, check);
  if (!is_filled ||
      xxh3_64(bytes.subspan(footer.index_offset, checked - footer.index_offset)) != footer.check)
    return std::nullopt;
  return footer;
}

void append_marked(const Example& example, std::vector<MarkedToken>& out) {
  SFTRUN_CHECK(example.tokens.size() == example.labels.size());
  for (size_t i = 0; i < example.tokens.size(); ++i) {
    SFTRUN_CHECK(example.tokens[i] >= 0);
    const bool trained = i > 0 && example.labels[i - 1] != kIgnoreIndex;
    SFTRUN_CHECK(!trained || example.labels[i - 1] == example.tokens[i]);
    out.push_back(static_cast<MarkedToken>(example.tokens[i]) | (trained ? kLabelBit : 0));
  }
}

StoredExample stored_of(const Example& example, uint64_t offset) {
  uint32_t label_tokens = 0;
  for (const int32_t label : example.labels) label_tokens += label != kIgnoreIndex ? 1 : 0;
  return {.offset = offset,
          .length = static_cast<uint32_t>(example.tokens.size()),
          .label_tokens = label_tokens,
          .record = example.record,
          .file = example.file,
          .number = static_cast<uint32_t>(
              std::min<int64_t>(example.line, std::numeric_limits<uint32_t>::max()))};
}

}  // namespace

struct ExampleStore::Contents {
  // One of the two: a mapped file, or values in memory.
  MappedFile file;
  std::vector<MarkedToken> held_tokens;
  std::vector<StoredExample> held_index;

  std::span<const MarkedToken> tokens;
  std::span<const StoredExample> index;
  std::span<const uint64_t> checksums;  // of the blocks of a mapped file's first part
  nlohmann::ordered_json header;
  mutable std::atomic<uint64_t> bytes_touched{0};

  /// @pre block < checksums.size()
  std::span<const std::byte> bytes_of(uint64_t block) const {
    const uint64_t begin = block * BlockChecksums::kBytes,
                   end = kMagic.size() + tokens.size_bytes();
    return file.bytes().subspan(begin, std::min<uint64_t>(BlockChecksums::kBytes, end - begin));
  }

  bool is_whole(uint64_t block) const { return xxh3_64(bytes_of(block)) == checksums[block]; }

  void require_all_whole(int num_threads) const {
    parallel_for(static_cast<int64_t>(checksums.size()), num_threads, [&](int64_t i) {
      const auto block = static_cast<uint64_t>(i);
      if (!is_whole(block)) fail_damaged(file.path());
      file.release(bytes_of(block));
    });
  }

  void require_whole(const StoredExample& example) const {
    if (checksums.empty() || example.length == 0) return;
    const uint64_t begin = kMagic.size() + example.offset * sizeof(MarkedToken),
                   last = begin + example.length * sizeof(MarkedToken) - 1;
    for (uint64_t block = begin / BlockChecksums::kBytes; block <= last / BlockChecksums::kBytes;
         ++block) {
      if (!is_whole(block)) fail_damaged(file.path());
    }
  }

  /// Pages that were read remain in the page cache but are not counted as memory of this process;
  /// otherwise an epoch over a large file would count all of it.
  void note_touched(uint64_t bytes) const {
    constexpr uint64_t kReleaseEvery = uint64_t{64} << 20;
    if (file.bytes().empty()) return;
    if (bytes_touched.fetch_add(bytes) + bytes < kReleaseEvery) return;
    bytes_touched = 0;
    file.release(file.bytes());
  }
};

ExampleStore ExampleStore::in_memory(const std::vector<Example>& examples) {
  auto contents = std::make_shared<Contents>();
  for (const Example& example : examples) {
    contents->held_index.push_back(stored_of(example, contents->held_tokens.size()));
    append_marked(example, contents->held_tokens);
  }
  contents->tokens = contents->held_tokens;
  contents->index = contents->held_index;
  ExampleStore store;
  store.num_selected_ = static_cast<int64_t>(contents->index.size());
  store.parts_.push_back({std::move(contents), store.num_selected_});
  return store;
}

ExampleStore ExampleStore::open(const std::filesystem::path& file, int num_threads) {
  auto contents = std::make_shared<Contents>();
  contents->file = MappedFile(file);
  const std::span<const std::byte> bytes = contents->file.bytes();
  const auto require = [&](bool condition) {
    if (!condition) fail_damaged(file);
  };
  const std::optional<Footer> found = footer_of(bytes);
  require(found.has_value());
  const Footer& footer = *found;
  const std::byte* index = bytes.data() + footer.index_offset;
  contents->tokens = {reinterpret_cast<const MarkedToken*>(bytes.data() + kMagic.size()),
                      (footer.index_offset - kMagic.size()) / sizeof(MarkedToken)};
  contents->index = {reinterpret_cast<const StoredExample*>(index), footer.num_examples};
  contents->checksums = {reinterpret_cast<const uint64_t*>(index + contents->index.size_bytes()),
                         num_blocks_of(footer.index_offset)};
  for (const StoredExample& example : contents->index) {
    require(example.offset <= contents->tokens.size() &&
            example.length <= contents->tokens.size() - example.offset);
  }
  contents->require_all_whole(num_threads);
  const char* header = reinterpret_cast<const char*>(bytes.data() + footer.header_offset);
  contents->header = nlohmann::ordered_json::parse(header, header + footer.header_size, nullptr,
                                                   /*allow_exceptions=*/false);
  require(contents->header.is_object());
  ExampleStore store;
  store.num_selected_ = static_cast<int64_t>(contents->index.size());
  store.parts_.push_back({std::move(contents), store.num_selected_});
  return store;
}

ExampleStore ExampleStore::concatenate(const std::vector<ExampleStore>& stores) {
  ExampleStore all;
  for (const ExampleStore& store : stores) {
    SFTRUN_CHECK(!store.selected_);
    for (Part part : store.parts_) {
      part.end += all.num_selected_;
      all.parts_.push_back(std::move(part));
    }
    all.num_selected_ += store.num_selected_;
  }
  return all;
}

ExampleStore::Place ExampleStore::place_of(int64_t index) const {
  SFTRUN_CHECK(index >= 0 && index < num_selected_);
  const int64_t among_all = selected_ ? (*selected_)[static_cast<size_t>(index)] : index;
  auto part = parts_.begin();
  while (among_all >= part->end) ++part;
  const int64_t begin = part == parts_.begin() ? 0 : std::prev(part)->end;
  return {part->contents.get(), &part->contents->index[static_cast<size_t>(among_all - begin)]};
}

const StoredExample& ExampleStore::stored(int64_t index) const {
  return *place_of(index).stored;
}

ExampleView ExampleStore::operator[](int64_t index) const {
  const Place place = place_of(index);
  place.contents->require_whole(*place.stored);
  place.contents->note_touched(place.stored->length * sizeof(MarkedToken) + sizeof(StoredExample));
  return {place.contents->tokens.subspan(place.stored->offset, place.stored->length), place.stored};
}

ExampleStore ExampleStore::select(const std::vector<int64_t>& indices) const {
  auto selected = std::make_shared<std::vector<int64_t>>();
  for (const int64_t index : indices) {
    SFTRUN_CHECK(index >= 0 && index < num_selected_);
    selected->push_back(selected_ ? (*selected_)[static_cast<size_t>(index)] : index);
  }
  ExampleStore store = *this;
  store.num_selected_ = static_cast<int64_t>(selected->size());
  store.selected_ = std::move(selected);
  return store;
}

const nlohmann::ordered_json& ExampleStore::header() const {
  SFTRUN_CHECK_EQ(parts_.size(), size_t{1});
  return parts_[0].contents->header;
}

ExampleWriter::ExampleWriter(const std::filesystem::path& file) : file_(file) {
  write(kMagic.data(), kMagic.size());
}

void ExampleWriter::write(const void* data, size_t num_bytes) {
  checksums_.add(data, num_bytes);
  file_.write(data, num_bytes);
}

void ExampleWriter::add(const Example& example) {
  index_.push_back(stored_of(example, num_tokens_));
  append_marked(example, buffer_);
  num_tokens_ += example.tokens.size();
  if (buffer_.size() >= kFlushTokens) flush();
}

void ExampleWriter::flush() {
  write(buffer_.data(), buffer_.size() * sizeof(MarkedToken));
  buffer_.clear();
}

void ExampleWriter::finish(const nlohmann::ordered_json& header) {
  if (num_tokens_ % 2 != 0) buffer_.push_back(0);  // the index is aligned to 8 bytes
  flush();
  const std::string text = header.dump();
  const std::vector<uint64_t> checksums = checksums_.finish();
  const uint64_t index_bytes = index_.size() * sizeof(StoredExample),
                 checksum_bytes = checksums.size() * sizeof(uint64_t);
  Footer footer;
  footer.index_offset = kMagic.size() + (num_tokens_ + num_tokens_ % 2) * sizeof(MarkedToken);
  footer.num_examples = index_.size();
  footer.header_offset = footer.index_offset + index_bytes + checksum_bytes;
  footer.header_size = text.size();
  std::string tail(reinterpret_cast<const char*>(index_.data()), index_bytes);
  tail.append(reinterpret_cast<const char*>(checksums.data()), checksum_bytes);
  tail += text;
  std::memcpy(footer.magic.data(), kMagic.data(), kMagic.size());
  tail.append(reinterpret_cast<const char*>(&footer), offsetof(Footer, check));
  footer.check = xxh3_64(std::as_bytes(std::span(tail)));
  file_.write(tail);
  file_.write(&footer.check, sizeof footer - offsetof(Footer, check));
  file_.commit();
}

}  // namespace sftrun::data
