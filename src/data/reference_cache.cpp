#include "sftrun/data/reference_cache.h"

#include <cstring>
#include <span>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/file_hash.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/xxh3.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kReferenceMagic = "sftrunR1";

uint64_t checksum_of(std::string_view bytes) {
  return xxh3_64(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

void append_word(std::string& to, uint64_t word) {
  to.append(reinterpret_cast<const char*>(&word), sizeof(word));
}

uint64_t word_at(std::string_view bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof(word));
  return word;
}

/// nullopt: the file is damaged, or has another number of values.
std::optional<std::vector<double>> values_in(std::string_view file, int64_t size) {
  const size_t begin = kReferenceMagic.size() + sizeof(uint64_t),
               end = begin + static_cast<size_t>(size) * sizeof(double);
  if (file.size() != end + sizeof(uint64_t) || !file.starts_with(kReferenceMagic)) return {};
  if (word_at(file, kReferenceMagic.size()) != static_cast<uint64_t>(size)) return {};
  if (word_at(file, end) != checksum_of(file.substr(0, end))) return {};
  std::vector<double> values(static_cast<size_t>(size));
  std::memcpy(values.data(), file.data() + begin, end - begin);
  return values;
}

}  // namespace

ReferenceCache::ReferenceCache(const std::string& configured) {
  if (configured == "none") return;
  const fs::path cache = !configured.empty()    ? fs::path(configured)
                         : user_cache().empty() ? fs::path()
                                                : user_cache() / "data";
  if (!cache.empty()) folder_ = cache / "reference";
}

fs::path ReferenceCache::file_of(const std::string& key) const {
  return folder_ / (key + ".logps");
}

std::optional<std::vector<double>> ReferenceCache::read(const std::string& key,
                                                        int64_t size) const {
  if (folder_.empty() || !leads_to_file(file_of(key))) return std::nullopt;
  try {
    auto values = values_in(read_text_file(file_of(key)), size);
    if (!values) log::warn("{} is damaged; computing its values again", file_of(key).string());
    return values;
  } catch (const Error& error) {
    log::warn("{}: {}; computing its values again", file_of(key).string(), error.message());
    return std::nullopt;
  }
}

void ReferenceCache::write(const std::string& key, const std::vector<double>& values) const {
  if (folder_.empty()) return;
  std::string file(kReferenceMagic);
  append_word(file, values.size());
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  append_word(file, checksum_of(file));
  try {
    make_directories(folder_);
    write_file_atomically(file_of(key), file);
  } catch (const Error& error) {
    log::warn("the reference model's log-probabilities are not cached: {}", error.message());
  }
}

std::string hash_of_examples(const ExampleStore& examples) {
  Fingerprint print;
  for (int64_t i = 0; i < examples.size(); ++i) {
    const ExampleView example = examples[i];
    const auto tokens = std::as_bytes(example.tokens);
    print.add(static_cast<uint64_t>(example.size())).add(xxh3_64(tokens));
  }
  return print.hex();
}

}  // namespace sftrun::data
