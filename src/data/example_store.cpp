#include "sftrun/data/example_store.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>

#include "sftrun/core/error.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/parallel_for.h"

namespace sftrun::data {
namespace {

constexpr std::string_view kMagic = "sftrunE6";
constexpr size_t kFlushTokens = size_t{1} << 20;

struct Footer {
  uint64_t index_offset = 0, num_examples = 0, num_media = 0, header_offset = 0, header_size = 0,
           check = 0;
  std::array<char, 8> magic{};
};
static_assert(sizeof(Footer) == 56);

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
  const bool is_counted = footer.num_examples <= between / sizeof(StoredExample) &&
                          footer.num_media <= between / sizeof(StoredMedia);
  const bool is_filled = is_counted && footer.num_examples * sizeof(StoredExample) +
                                               footer.num_media * sizeof(StoredMedia) + sums ==
                                           between;
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

/// StoredExample::columns.
uint8_t columns_of(const LabelValues& values, uint32_t label_tokens) {
  uint8_t bits = 0;
  for (size_t i = 0; i < kNumLabelColumns; ++i) {
    if (values.columns[i].empty()) continue;
    SFTRUN_CHECK_EQ(values.columns[i].size(), size_t{label_tokens});
    bits = static_cast<uint8_t>(bits | 1U << i);
  }
  return bits;
}
/// Values behind the tokens: those of columns, and all.
uint64_t num_column_values(const StoredExample& example) {
  return static_cast<uint64_t>(std::popcount(example.columns)) * example.label_tokens;
}
uint64_t num_values(const StoredExample& example) {
  return num_column_values(example) + example.num_targets;
}
/// Words behind the values, of the record's text.
uint64_t num_record_words(const StoredExample& example) {
  return (uint64_t{example.record_bytes} + sizeof(MarkedToken) - 1) / sizeof(MarkedToken);
}

double label_weight_of(const Example& example, uint32_t label_tokens) {
  const std::vector<float>& weights = example.values.of(LabelColumn::kWeight);
  return weights.empty() ? label_tokens : std::accumulate(weights.begin(), weights.end(), 0.0);
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
              std::min<int64_t>(example.line, std::numeric_limits<uint32_t>::max())),
          .num_media = static_cast<uint32_t>(example.media.size()),
          .answer_begin = static_cast<uint32_t>(example.answer_begin),
          .num_targets = static_cast<uint32_t>(example.targets.size()),
          .judgement = static_cast<uint8_t>(example.judgement),
          .columns = columns_of(example.values, label_tokens),
          .score_kind = static_cast<uint8_t>(example.score_kind),
          .is_cut_short = static_cast<uint8_t>(example.is_cut_short ? 1 : 0),
          .record_bytes = static_cast<uint32_t>(example.record_text.size()),
          .label_weight = label_weight_of(example, label_tokens),
          .score = example.score,
          .group = example.group};
}

void append_floats(const std::vector<float>& values, std::vector<MarkedToken>& out) {
  for (const float value : values) out.push_back(std::bit_cast<MarkedToken>(value));
}
std::vector<float> floats_of(std::span<const MarkedToken> words) {
  std::vector<float> values;
  values.reserve(words.size());
  for (const MarkedToken word : words) values.push_back(std::bit_cast<float>(word));
  return values;
}

StoredMedia::Holds held_by(const SequenceMedia& media) {
  if (!media.frames.further.empty()) return StoredMedia::kFiles;
  return media.media.bytes != nullptr ? StoredMedia::kBytes : StoredMedia::kPath;
}

/// @param room receives a text that is made
std::string_view media_text(const SequenceMedia& media, std::string& room) {
  switch (held_by(media)) {
    case StoredMedia::kBytes:
      return *media.media.bytes;
    case StoredMedia::kPath:
      return media.media.path;
    case StoredMedia::kFiles:
      return room = packed_files(media);
  }
  return {};
}

/// Appends bytes in whole tokens.
void append_bytes(std::string_view bytes, std::vector<MarkedToken>& out) {
  const size_t begin = out.size();
  out.resize(begin + (bytes.size() + sizeof(MarkedToken) - 1) / sizeof(MarkedToken), 0);
  if (!bytes.empty()) std::memcpy(out.data() + begin, bytes.data(), bytes.size());
}

/// Columns, targets and the record's text.
void append_values(const Example& example, std::vector<MarkedToken>& out) {
  for (const std::vector<float>& column : example.values.columns) append_floats(column, out);
  append_floats(example.targets, out);
  append_bytes(example.record_text, out);
}

StoredMedia stored_media_of(const SequenceMedia& image, uint64_t media_offset,
                            uint64_t media_size) {
  const auto number = [](int64_t value) {
    SFTRUN_CHECK(value >= 0 && value <= std::numeric_limits<uint32_t>::max());
    return static_cast<uint32_t>(value);
  };
  return {
      .media_offset = media_offset,
      .media_size = media_size,
      .width = number(image.width),
      .height = number(image.height),
      .rows = number(image.rows),
      .num_tokens = number(image.num_tokens),
      .grid_thw = {number(image.grid_thw[0]), number(image.grid_thw[1]), number(image.grid_thw[2])},
      .feature = image.feature,
      .begin = number(image.begin),
      .end = number(image.end),
      .holds = held_by(image),
      .projector = number(image.projector + 1),
      .video = number(image.frames.video),
      .frames_of_video = number(image.frames.of_video),
      .first_frame = number(image.frames.first),
      .time = static_cast<int32_t>(image.frames.time)};
}

SequenceMedia image_of(const StoredMedia& stored, std::string_view media) {
  SequenceMedia image{.projector = static_cast<int64_t>(stored.projector) - 1,
                      .frames = {.video = stored.video,
                                 .of_video = stored.frames_of_video,
                                 .first = stored.first_frame,
                                 .time = stored.time},
                      .width = stored.width,
                      .height = stored.height,
                      .rows = stored.rows,
                      .num_tokens = stored.num_tokens,
                      .grid_thw = {stored.grid_thw[0], stored.grid_thw[1], stored.grid_thw[2]},
                      .begin = stored.begin,
                      .end = stored.end,
                      .feature = stored.feature};
  std::vector<Media> files;
  switch (stored.holds) {
    case StoredMedia::kPath:
      image.media.path = media;
      break;
    case StoredMedia::kFiles:
      files = unpacked_files(media);
      if (files.empty()) break;
      image.media = std::move(files.front());
      image.frames.further.assign(std::make_move_iterator(files.begin() + 1),
                                  std::make_move_iterator(files.end()));
      break;
    default:
      image.media.bytes = std::make_shared<const std::string>(media);
  }
  return image;
}

}  // namespace

struct ExampleStore::Contents {
  // One of the two: a mapped file, or values in memory.
  MappedFile file;
  std::vector<MarkedToken> held_tokens;
  std::vector<StoredExample> held_index;
  std::vector<StoredMedia> held_images;

  std::span<const MarkedToken> tokens;  // and media
  std::span<const StoredExample> index;
  std::span<const StoredMedia> images;
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

  /// @param offset, size in bytes from the first token
  void require_whole(uint64_t offset, uint64_t size) const {
    if (checksums.empty() || size == 0) return;
    const uint64_t begin = kMagic.size() + offset, last = begin + size - 1;
    for (uint64_t block = begin / BlockChecksums::kBytes; block <= last / BlockChecksums::kBytes;
         ++block) {
      if (!is_whole(block)) fail_damaged(file.path());
    }
  }

  std::string_view media_of(const StoredMedia& image) const {
    require_whole(image.media_offset, image.media_size);
    const auto* bytes = reinterpret_cast<const char*>(tokens.data());
    return {bytes + image.media_offset, image.media_size};
  }

  /// Whether an example and its images lie within the file, and its answer within its tokens.
  bool holds(const StoredExample& example) const {
    const bool has_tokens = example.offset <= tokens.size() &&
                            example.length + num_values(example) + num_record_words(example) <=
                                tokens.size() - example.offset;
    const bool has_answer = example.judgement <= static_cast<uint8_t>(Judgement::kDesirable) &&
                            example.score_kind <= static_cast<uint8_t>(ScoreKind::kAdvantage) &&
                            example.answer_begin <= example.length;
    const bool has_columns = example.columns >> kNumLabelColumns == 0 &&
                             example.label_tokens <= example.length &&
                             std::isfinite(example.label_weight) && std::isfinite(example.score);
    if (!has_tokens || !has_answer || !has_columns || example.first_media > images.size() ||
        example.num_media > images.size() - example.first_media)
      return false;
    const auto own = images.subspan(example.first_media, example.num_media);
    return std::all_of(own.begin(), own.end(), [&](const StoredMedia& image) {
      return image.begin <= image.end && image.end <= example.length &&
             image.media_offset <= tokens.size_bytes() &&
             image.media_size <= tokens.size_bytes() - image.media_offset;
    });
  }

  /// Words behind an example's tokens.   @param first, count among its values
  std::vector<float> values_of(const StoredExample& example, uint64_t first, uint64_t count) const {
    const uint64_t begin = example.offset + example.length + first;
    require_whole(begin * sizeof(MarkedToken), count * sizeof(MarkedToken));
    return floats_of(tokens.subspan(begin, count));
  }

  std::string record_text_of(const StoredExample& example) const {
    const uint64_t begin =
        (example.offset + example.length + num_values(example)) * sizeof(MarkedToken);
    require_whole(begin, example.record_bytes);
    const auto* bytes = reinterpret_cast<const char*>(tokens.data());
    return {bytes + begin, example.record_bytes};
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
    const auto first_media = static_cast<uint32_t>(contents->held_images.size());
    for (const SequenceMedia& image : example.media) {
      std::string room;
      const std::string_view media = media_text(image, room);
      contents->held_images.push_back(
          stored_media_of(image, contents->held_tokens.size() * sizeof(MarkedToken), media.size()));
      append_bytes(media, contents->held_tokens);
    }
    StoredExample stored = stored_of(example, contents->held_tokens.size());
    stored.first_media = first_media;
    contents->held_index.push_back(stored);
    append_marked(example, contents->held_tokens);
    append_values(example, contents->held_tokens);
  }
  contents->tokens = contents->held_tokens;
  contents->index = contents->held_index;
  contents->images = contents->held_images;
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
  index += contents->index.size_bytes();
  contents->images = {reinterpret_cast<const StoredMedia*>(index), footer.num_media};
  index += contents->images.size_bytes();
  contents->checksums = {reinterpret_cast<const uint64_t*>(index),
                         num_blocks_of(footer.index_offset)};
  for (const StoredExample& example : contents->index) require(contents->holds(example));
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

MediaKinds ExampleStore::media_kinds() const {
  MediaKinds kinds;
  for (int64_t i = 0; i < size() && !(kinds.images && kinds.features); ++i) {
    if (stored(i).num_media == 0) continue;
    for (const StoredMedia& media : stored_media(i))
      (media.is_image() ? kinds.images : kinds.features) = true;
  }
  return kinds;
}

ExampleStore ExampleStore::concatenate(const std::vector<ExampleStore>& stores) {
  ExampleStore all;
  std::vector<int64_t> selected;
  bool selects = false;
  int64_t begin = 0;  // of a store's examples, selected or not
  for (const ExampleStore& store : stores) {
    const int64_t stored = store.parts_.empty() ? 0 : store.parts_.back().end;
    for (Part part : store.parts_) {
      part.end += begin;
      all.parts_.push_back(std::move(part));
    }
    selects = selects || store.selected_ != nullptr;
    for (int64_t i = 0; i < store.num_selected_; ++i)
      selected.push_back(begin +
                         (store.selected_ ? (*store.selected_)[static_cast<size_t>(i)] : i));
    begin += stored;
  }
  all.num_selected_ = std::ssize(selected);
  if (selects) all.selected_ = std::make_shared<const std::vector<int64_t>>(std::move(selected));
  return all;
}

void ExampleStore::set_reference_logps(std::vector<double> logps) {
  SFTRUN_CHECK_EQ(std::ssize(logps), num_selected_);
  reference_logps_ = std::make_shared<const std::vector<double>>(std::move(logps));
}

void ExampleStore::set_advantages(std::vector<double> advantages) {
  SFTRUN_CHECK_EQ(std::ssize(advantages), num_selected_);
  advantages_ = std::make_shared<const std::vector<double>>(std::move(advantages));
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
  place.contents->require_whole(place.stored->offset * sizeof(MarkedToken),
                                place.stored->length * sizeof(MarkedToken));
  place.contents->note_touched(place.stored->length * sizeof(MarkedToken) + sizeof(StoredExample));
  return {place.contents->tokens.subspan(place.stored->offset, place.stored->length), place.stored};
}

LabelValues ExampleStore::values_of(int64_t index) const {
  const auto [contents, stored] = place_of(index);
  LabelValues values;
  uint64_t first = 0;
  for (size_t i = 0; i < kNumLabelColumns; ++i) {
    if (!stored->has(static_cast<LabelColumn>(i))) continue;
    values.columns[i] = contents->values_of(*stored, first, stored->label_tokens);
    first += stored->label_tokens;
  }
  return values;
}

std::vector<float> ExampleStore::targets_of(int64_t index) const {
  const auto [contents, stored] = place_of(index);
  return contents->values_of(*stored, num_column_values(*stored), stored->num_targets);
}

std::string ExampleStore::record_text_of(int64_t index) const {
  const auto [contents, stored] = place_of(index);
  return contents->record_text_of(*stored);
}

std::span<const StoredMedia> ExampleStore::stored_media(int64_t index) const {
  const Place place = place_of(index);
  return place.contents->images.subspan(place.stored->first_media, place.stored->num_media);
}

std::vector<SequenceMedia> ExampleStore::media_of(int64_t index) const {
  const Place place = place_of(index);
  std::vector<SequenceMedia> images;
  for (const StoredMedia& image : stored_media(index)) {
    images.push_back(image_of(image, place.contents->media_of(image)));
    place.contents->note_touched(image.media_size);
  }
  return images;
}

ExampleStore ExampleStore::select(const std::vector<int64_t>& indices) const {
  auto selected = std::make_shared<std::vector<int64_t>>();
  for (const int64_t index : indices) {
    SFTRUN_CHECK(index >= 0 && index < num_selected_);
    selected->push_back(selected_ ? (*selected_)[static_cast<size_t>(index)] : index);
  }
  ExampleStore store = *this;
  store.reference_logps_ = store.advantages_ = nullptr;
  store.teacher_ = nullptr;
  store.num_selected_ = static_cast<int64_t>(selected->size());
  store.selected_ = std::move(selected);
  return store;
}

const nlohmann::ordered_json& ExampleStore::header() const {
  SFTRUN_CHECK_EQ(parts_.size(), size_t{1});
  return parts_[0].contents->header;
}

std::string_view ExampleStore::attachment() const {
  const nlohmann::ordered_json place = header().value("attachment", nlohmann::ordered_json());
  if (!place.is_array() || place.size() != 2) return {};
  const Contents& contents = *parts_[0].contents;
  const auto offset = place[0].get<uint64_t>(), size = place[1].get<uint64_t>();
  const uint64_t all = contents.tokens.size_bytes();
  if (offset > all || size > all - offset) fail_damaged(contents.file.path());
  contents.require_whole(offset, size);
  return {reinterpret_cast<const char*>(contents.tokens.data()) + offset, size};
}

ExampleWriter::ExampleWriter(const std::filesystem::path& file) : file_(file) {
  write(kMagic.data(), kMagic.size());
}

void ExampleWriter::write(const void* data, size_t num_bytes) {
  checksums_.add(data, num_bytes);
  file_.write(data, num_bytes);
}

void ExampleWriter::add(const Example& example) {
  const auto first_media = static_cast<uint32_t>(images_.size());
  for (const SequenceMedia& image : example.media) {
    std::string room;
    const std::string_view media = media_text(image, room);
    const auto [known, is_new] = media_.try_emplace(xxh3_128(std::as_bytes(std::span(media))),
                                                    num_tokens_ * sizeof(MarkedToken));
    images_.push_back(stored_media_of(image, known->second, media.size()));
    if (!is_new) continue;
    const size_t before = buffer_.size();
    append_bytes(media, buffer_);
    num_tokens_ += buffer_.size() - before;
  }
  index_.push_back(stored_of(example, num_tokens_));
  index_.back().first_media = first_media;
  append_marked(example, buffer_);
  append_values(example, buffer_);
  num_tokens_ +=
      example.tokens.size() + num_values(index_.back()) + num_record_words(index_.back());
  if (buffer_.size() >= kFlushTokens) flush();
}

void ExampleWriter::flush() {
  write(buffer_.data(), buffer_.size() * sizeof(MarkedToken));
  buffer_.clear();
}

void ExampleWriter::finish(nlohmann::ordered_json header, std::string_view attachment) {
  if (!attachment.empty()) {
    header["attachment"] = {num_tokens_ * sizeof(MarkedToken), attachment.size()};
    const size_t before = buffer_.size();
    append_bytes(attachment, buffer_);
    num_tokens_ += buffer_.size() - before;
  }
  if (num_tokens_ % 2 != 0) buffer_.push_back(0);  // the index is aligned to 8 bytes
  flush();
  const std::string text = header.dump();
  const std::vector<uint64_t> checksums = checksums_.finish();
  const uint64_t index_bytes = index_.size() * sizeof(StoredExample),
                 image_bytes = images_.size() * sizeof(StoredMedia),
                 checksum_bytes = checksums.size() * sizeof(uint64_t);
  Footer footer;
  footer.index_offset = kMagic.size() + (num_tokens_ + num_tokens_ % 2) * sizeof(MarkedToken);
  footer.num_examples = index_.size();
  footer.num_media = images_.size();
  footer.header_offset = footer.index_offset + index_bytes + image_bytes + checksum_bytes;
  footer.header_size = text.size();
  std::string tail(reinterpret_cast<const char*>(index_.data()), index_bytes);
  tail.append(reinterpret_cast<const char*>(images_.data()), image_bytes);
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
