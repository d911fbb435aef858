#include "sftrun/data/teacher_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>

#include "sftrun/core/error.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/presence.h"

namespace sftrun::data {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
namespace {

constexpr std::string_view kPartMagic = "sftrunK1";
constexpr const char *kDescriptionFile = "teacher.json", *kFormat = "sftrun teacher 1";
constexpr size_t kValueBytes = 4;
constexpr std::string_view kPartEnding = ".scores";
constexpr size_t kNumberDigits = 5, kRankDigits = 3;  // at least

struct PartFooter {
  uint64_t index_offset = 0, num_examples = 0, description = 0, check = 0;
  std::array<char, 8> magic{};
};
static_assert(sizeof(PartFooter) == 40);

[[noreturn]] void fail_damaged_part(const fs::path& file) {
  throw DataError("not a file of a teacher's scores, or damaged", file.string(),
                  "remove it and rerun the `sftrun score` command that wrote the folder: it adds "
                  "what is missing");
}

uint64_t blocks_of(uint64_t bytes) {
  return (bytes + BlockChecksums::kBytes - 1) / BlockChecksums::kBytes;
}

bool is_number_of_digits(std::string_view text, size_t at_least) {
  return text.size() >= at_least && text.find_first_not_of("0123456789") == text.npos;
}

/// Of what `name_of_part` gives.
bool is_name_of_part(std::string_view name) {
  if (!name.ends_with(kPartEnding)) return false;
  name.remove_suffix(kPartEnding.size());
  const size_t dash = name.find('-');
  return dash != name.npos && is_number_of_digits(name.substr(0, dash), kNumberDigits) &&
         is_number_of_digits(name.substr(dash + 1), kRankDigits);
}

/// nullopt: the file is damaged.
std::optional<PartFooter> part_footer_of(std::span<const std::byte> bytes) {
  PartFooter footer;
  if (bytes.size() < kPartMagic.size() + sizeof footer) return std::nullopt;
  const uint64_t end = bytes.size() - sizeof footer;
  std::memcpy(&footer, bytes.data() + end, sizeof footer);
  if (std::memcmp(bytes.data(), kPartMagic.data(), kPartMagic.size()) != 0 ||
      std::memcmp(footer.magic.data(), kPartMagic.data(), kPartMagic.size()) != 0)
    return std::nullopt;
  const bool is_in_order = footer.index_offset % alignof(StoredScores) == 0 &&
                           footer.index_offset >= kPartMagic.size() && footer.index_offset <= end;
  if (!is_in_order) return std::nullopt;
  const uint64_t between = end - footer.index_offset;
  if (footer.num_examples > between / sizeof(StoredScores) ||
      footer.num_examples * sizeof(StoredScores) +
              blocks_of(footer.index_offset) * sizeof(uint64_t) !=
          between)
    return std::nullopt;
  const uint64_t checked = end + offsetof(PartFooter, check);
  if (xxh3_64(bytes.subspan(footer.index_offset, checked - footer.index_offset)) != footer.check)
    return std::nullopt;
  return footer;
}

void append_media(const Media& media, std::string& to) {
  to += media.path + '\n';
  if (media.bytes != nullptr) to += xxh3_128(std::string_view(*media.bytes)) + '\n';
}

}  // namespace

Json TeacherDescription::to_json() const {
  return {{"format", kFormat},
          {"teacher", teacher},
          {"k", k},
          {"temperature", temperature},
          {"dtype", dtype},
          {"fingerprint", fingerprint},
          {"rendered_at", rendered_at_unix_s},
          {"tokens", tokens}};
}

TeacherDescription TeacherDescription::from_json(const Json& json, const std::string& where) {
  TeacherDescription description;
  try {
    if (json.at("format") != kFormat)
      throw DataError(fmt::format("the format is {}, and this version reads \"{}\"",
                                  json.at("format").dump(), kFormat),
                      where, "score the data again with this version");
    description = {.k = json.at("k"),
                   .temperature = json.at("temperature"),
                   .teacher = json.at("teacher"),
                   .fingerprint = json.at("fingerprint"),
                   .dtype = json.at("dtype"),
                   .rendered_at_unix_s = json.at("rendered_at"),
                   .tokens = json.at("tokens")};
  } catch (const Json::exception&) {
    throw DataError("not the description of a teacher's scores, or damaged", where,
                    "name the folder that `sftrun score --topk` has written");
  }
  if (description.k < 1 || !(description.temperature > 0))
    throw DataError("k or temperature is not positive", where, "score the data again");
  return description;
}

uint64_t TeacherDescription::hash() const {
  Json values = to_json();
  values.erase("teacher");
  values.erase("rendered_at");
  const std::string text = values.dump(-1, ' ', false, Json::error_handler_t::replace);
  return xxh3_64(std::as_bytes(std::span(text)));
}

void require_temperature(const TeacherDescription& teacher, double temperature,
                         const std::string& where) {
  if (teacher.temperature == temperature) return;
  throw ConfigError(
      fmt::format("`train.kd_temperature` is {:g}, and the teacher's scores were written with {:g}",
                  temperature, teacher.temperature),
      where,
      fmt::format("set it to {:g}, or score into another folder with --temperature {:g}",
                  teacher.temperature, temperature));
}

std::vector<std::string> tokens_of(const tokenizer::Tokenizer& tokenizer) {
  std::vector<std::string> tokens;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string token = tokenizer.id_to_token(static_cast<tokenizer::TokenId>(id));
    // Tokens of bytes may be no UTF-8, which JSON has not.
    tokens.push_back(Json::parse(Json(token).dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  return tokens;
}

ExampleKey key_of_example(const ExampleStore& examples, int64_t index) {
  const ExampleView example = examples[index];
  std::string hash = xxh3_128(std::as_bytes(example.tokens));
  if (example.stored->num_media > 0) {
    for (const SequenceMedia& media : examples.media_of(index)) {
      append_media(media.media, hash);
      for (const Media& frame : media.frames.further) append_media(frame, hash);
      hash += fmt::format("{} {} {} {}\n", media.width, media.height, media.begin, media.end);
    }
    hash = xxh3_128(std::string_view(hash));
  }
  constexpr size_t kDigits = 16;
  return {std::stoull(hash.substr(0, kDigits), nullptr, 16),
          std::stoull(hash.substr(kDigits), nullptr, 16)};
}

std::string name_of_part(int64_t number, int rank) {
  return fmt::format("{:0{}}-{:0{}}{}", number, kNumberDigits, rank, kRankDigits, kPartEnding);
}

std::vector<fs::path> parts_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_name_of_part(entry.path().filename().string())) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

bool TeacherScores::are_in(const fs::path& folder) {
  return leads_to_file(folder / kDescriptionFile);
}

TeacherScores::TeacherScores(const fs::path& folder) : folder_(folder) {
  const fs::path file = folder / kDescriptionFile;
  if (!are_in(folder))
    throw DataError("no teacher's scores are here", folder.string(),
                    "name the folder that `sftrun score --topk` has written");
  description_ = TeacherDescription::from_json(
      Json::parse(read_text_file(file), nullptr, /*allow_exceptions=*/false), file.string());
  for (const fs::path& part : parts_in(folder)) parts_.push_back(open_part(part));
}

TeacherScores::Part TeacherScores::open_part(const fs::path& file) const {
  Part part{.file = MappedFile(file)};
  const std::span<const std::byte> bytes = part.file.bytes();
  const std::optional<PartFooter> footer = part_footer_of(bytes);
  if (!footer) fail_damaged_part(file);
  if (footer->description != description_.hash())
    throw DataError("these scores do not belong to the teacher.json beside them", file.string(),
                    "score into another folder");
  const std::byte* index = bytes.data() + footer->index_offset;
  part.index = {reinterpret_cast<const StoredScores*>(index), footer->num_examples};
  index += part.index.size_bytes();
  part.checksums = {reinterpret_cast<const uint64_t*>(index), blocks_of(footer->index_offset)};
  part.values_end = footer->index_offset;
  const uint64_t values = (part.values_end - kPartMagic.size()) / kValueBytes,
                 of_row = 2 * static_cast<uint64_t>(description_.k) + 1;
  for (const StoredScores& stored : part.index)
    if (stored.offset > values || stored.rows > (values - stored.offset) / of_row)
      fail_damaged_part(file);
  return part;
}

TeacherScores::Place TeacherScores::place_of(const ExampleKey& key) const {
  for (const Part& part : parts_) {
    const auto found = std::lower_bound(
        part.index.begin(), part.index.end(), key,
        [](const StoredScores& stored, const ExampleKey& wanted) { return stored.key < wanted; });
    if (found != part.index.end() && found->key == key) return {&part, &*found};
  }
  return {};
}

/// Pages of a mapped file may be read from disk again, so each use verifies its blocks.
void TeacherScores::require_whole(const Part& part, uint64_t begin, uint64_t end) const {
  for (uint64_t block = begin / BlockChecksums::kBytes; block * BlockChecksums::kBytes < end;
       ++block) {
    const uint64_t first = block * BlockChecksums::kBytes;
    const auto bytes = part.file.bytes().subspan(
        first, std::min<uint64_t>(BlockChecksums::kBytes, part.values_end - first));
    if (xxh3_64(bytes) != part.checksums[block]) fail_damaged_part(part.file.path());
  }
}

void TeacherScores::require_whole() const {
  for (const Part& part : parts_) {
    for (uint64_t begin = 0; begin < part.values_end; begin += BlockChecksums::kBytes) {
      interruption_point();
      require_whole(part, begin,
                    std::min<uint64_t>(begin + BlockChecksums::kBytes, part.values_end));
    }
  }
}

void TeacherScores::append(const ExampleKey& key, int64_t num_rows, TeacherRows& to) const {
  const auto [part, stored] = place_of(key);
  SFTRUN_CHECK(stored != nullptr);
  if (stored->rows != static_cast<uint64_t>(num_rows)) fail_damaged_part(part->file.path());
  const auto k = static_cast<uint64_t>(description_.k);
  const uint64_t begin = kPartMagic.size() + stored->offset * kValueBytes,
                 tokens = stored->rows * k, log_probs = stored->rows * (k + 1);
  require_whole(*part, begin, begin + (tokens + log_probs) * kValueBytes);
  const std::byte* values = part->file.bytes().data() + begin;
  const auto copy = [&](auto& vector, uint64_t count) {
    const size_t before = vector.size();
    vector.resize(before + count);
    if (count > 0) std::memcpy(vector.data() + before, values, count * kValueBytes);
    values += count * kValueBytes;
  };
  to.k = description_.k;
  copy(to.tokens, tokens);
  copy(to.log_probs, log_probs);
}

uint64_t TeacherScores::num_bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.file.bytes().size();
  return bytes;
}

void write_teacher(const fs::path& folder, const TeacherDescription& description) {
  make_directories(folder);
  TeacherDescription written = description;
  write_file_atomically(
      folder / kDescriptionFile,
      written.to_json().dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

TeacherPartWriter::TeacherPartWriter(const fs::path& file, const TeacherDescription& description)
    : file_(file), k_(static_cast<uint64_t>(description.k)), description_(description.hash()) {
  write(kPartMagic.data(), kPartMagic.size());
}

void TeacherPartWriter::write(const void* data, size_t num_bytes) {
  checksums_.add(data, num_bytes);
  file_.write(data, num_bytes);
  bytes_ += num_bytes;
}

void TeacherPartWriter::add(const ExampleKey& key, std::span<const int32_t> tokens,
                            std::span<const float> log_probs) {
  const uint64_t rows = tokens.size() / k_;
  SFTRUN_CHECK(tokens.size() == rows * k_ && log_probs.size() == rows * (k_ + 1));
  index_.push_back(
      {.key = key, .offset = (bytes_ - kPartMagic.size()) / kValueBytes, .rows = rows});
  write(tokens.data(), tokens.size_bytes());
  write(log_probs.data(), log_probs.size_bytes());
}

void TeacherPartWriter::finish() {
  constexpr uint64_t kNothing = 0;
  if (bytes_ % alignof(StoredScores) != 0)
    write(&kNothing, alignof(StoredScores) - bytes_ % alignof(StoredScores));
  std::sort(index_.begin(), index_.end(),
            [](const StoredScores& a, const StoredScores& b) { return a.key < b.key; });
  PartFooter footer{.index_offset = bytes_,
                    .num_examples = index_.size(),
                    .description = description_,
                    .check = 0};
  const std::vector<uint64_t> checksums = checksums_.finish();
  std::string tail(reinterpret_cast<const char*>(index_.data()),
                   index_.size() * sizeof(StoredScores));
  tail.append(reinterpret_cast<const char*>(checksums.data()), checksums.size() * sizeof(uint64_t));
  std::memcpy(footer.magic.data(), kPartMagic.data(), kPartMagic.size());
  tail.append(reinterpret_cast<const char*>(&footer), offsetof(PartFooter, check));
  footer.check = xxh3_64(std::as_bytes(std::span(tail)));
  file_.write(tail);
  file_.write(&footer.check, sizeof footer - offsetof(PartFooter, check));
  file_.commit();
}

}  // namespace sftrun::data
