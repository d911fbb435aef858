#include "sftrun/data/media.h"

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
  return media.bytes != nullptr ? "bytes in the record" : excerpt(media.path);
}

}  // namespace sftrun::data
