#include "sftrun/data/media.h"

#include <cstring>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"

namespace sftrun::data {

bool Media::operator==(const Media& other) const {
  if (path != other.path || (bytes == nullptr) != (other.bytes == nullptr)) return false;
  return bytes == nullptr || *bytes == *other.bytes;
}

std::string read_media(const Media& media) {
  return media.bytes != nullptr ? *media.bytes : read_text_file(media.path);
}

std::string name_of(const Media& media) {
  return media.bytes != nullptr ? kBytesInRecord : excerpt(media.path);
}

std::vector<Media> files_of(const SequenceMedia& media) {
  std::vector<Media> files = {media.media};
  files.insert(files.end(), media.frames.further.begin(), media.frames.further.end());
  return files;
}

// Of each file: 'p' for a path or 'b' for bytes, the size as uint64, little-endian, and the text.
std::string packed_files(const SequenceMedia& media) {
  std::string packed;
  for (const Media& file : files_of(media)) {
    const std::string& text = file.bytes != nullptr ? *file.bytes : file.path;
    const uint64_t size = text.size();
    packed += file.bytes != nullptr ? 'b' : 'p';
    packed.append(reinterpret_cast<const char*>(&size), sizeof size);
    packed += text;
  }
  return packed;
}

std::vector<Media> unpacked_files(std::string_view packed) {
  constexpr size_t kHead = 1 + sizeof(uint64_t);
  std::vector<Media> files;
  while (!packed.empty()) {
    uint64_t size = 0;
    if (packed.size() >= kHead) std::memcpy(&size, packed.data() + 1, sizeof size);
    if (packed.size() < kHead || size > packed.size() - kHead)
      throw DataError("the files of a video's frames are damaged in the tokenized data", "",
                      "rerun with data.cache_dir=none");
    const std::string_view text = packed.substr(kHead, size);
    if (packed[0] == 'b')
      files.push_back({.bytes = std::make_shared<const std::string>(text)});
    else
      files.push_back({.path = std::string(text)});
    packed.remove_prefix(kHead + size);
  }
  return files;
}

}  // namespace sftrun::data
