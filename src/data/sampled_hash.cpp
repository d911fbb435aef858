#include "sampled_hash.h"

#include <sys/stat.h>

#include <fstream>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/open_file.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

uint64_t size_of(const fs::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0)
    throw DataError("cannot open file: it does not exist, or there is no read permission",
                    file.string());
  if (!S_ISREG(info.st_mode)) throw DataError("not a regular file", file.string());
  return static_cast<uint64_t>(info.st_size);
}

void add_chunk(Fingerprint& fingerprint, std::ifstream& in, std::vector<char>& buffer) {
  in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  fingerprint.add(buffer.data(), static_cast<size_t>(in.gcount()));
}

}  // namespace

std::string sampled_hash(const fs::path& file) {
  const uint64_t size = size_of(file);
  require_no_special_file(file);
  std::ifstream in(file, std::ios::binary);
  std::vector<char> buffer(kChunkBytes);
  Fingerprint fingerprint;
  fingerprint.add(size);
  add_chunk(fingerprint, in, buffer);
  if (size > kChunkBytes) {
    in.clear();
    in.seekg(-static_cast<std::streamoff>(kChunkBytes), std::ios::end);
    add_chunk(fingerprint, in, buffer);
  }
  return fingerprint.hex();
}

}  // namespace sftrun::data
