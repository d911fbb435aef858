#include "content_hash.h"

#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

struct stat status_of(const fs::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0)
    throw DataError("cannot open file: it does not exist, or may not be read", file.string());
  if (!S_ISREG(info.st_mode)) throw DataError("not a regular file", file.string());
  return info;
}

int64_t modified_ns(const struct stat& info) {
  return info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
}

/// A file changed a moment ago may change again within its clock's tick.
bool is_settled(const struct stat& info) {
  constexpr int64_t kTickNs = 3'000'000'000;
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  return now - modified_ns(info) > kTickNs;
}

void add_chunk(Fingerprint& fingerprint, std::ifstream& in, std::vector<char>& buffer) {
  in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  fingerprint.add(buffer.data(), static_cast<size_t>(in.gcount()));
}

std::string hash_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw DataError("cannot open file", file.string());
  std::vector<char> buffer(kChunkBytes);
  Fingerprint fingerprint;
  while (in) add_chunk(fingerprint, in, buffer);
  if (in.bad()) throw DataError("cannot read file", file.string());
  return fingerprint.hex();
}

}  // namespace

std::string content_hash(const fs::path& file, const fs::path& memory) {
  const struct stat info = status_of(file);
  std::error_code ignored;
  const std::string key = Fingerprint()
                              .add(fs::absolute(file, ignored).string())
                              .add(static_cast<uint64_t>(info.st_size))
                              .add(static_cast<uint64_t>(modified_ns(info)))
                              .add(static_cast<uint64_t>(info.st_ino))
                              .hex();
  const fs::path remembered = memory / key;
  if (!memory.empty() && fs::exists(remembered, ignored)) {
    if (std::string hash = read_text_file(remembered); hash.size() == key.size()) return hash;
  }
  std::string hash = hash_of(file);
  if (!memory.empty() && is_settled(info)) write_file_atomically(remembered, hash);
  return hash;
}

std::string sampled_hash(const fs::path& file) {
  const struct stat info = status_of(file);
  std::ifstream in(file, std::ios::binary);
  std::vector<char> buffer(kChunkBytes);
  Fingerprint fingerprint;
  fingerprint.add(static_cast<uint64_t>(info.st_size));
  add_chunk(fingerprint, in, buffer);
  if (static_cast<size_t>(info.st_size) > kChunkBytes) {
    in.clear();
    in.seekg(-static_cast<std::streamoff>(kChunkBytes), std::ios::end);
    add_chunk(fingerprint, in, buffer);
  }
  return fingerprint.hex();
}

}  // namespace sftrun::data
