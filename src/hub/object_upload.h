#pragma once

#include <atomic>
#include <cstdint>

#include "digest.h"
#include "sftrun/hub/upload.h"
#include "upload_api.h"

namespace sftrun::hub {

/// Progress of all uploads of a command.
struct SentTally {
  std::atomic<uint64_t> done_bytes{0};  ///< of objects, as far as they are there
  std::atomic<uint64_t> sent_bytes{0};  ///< over the network
};

/// Sends one LFS object: in one piece or in parts, as the hub says, and lets the hub verify it. After
/// a failure it asks for new addresses, because signed ones expire.
/// @param place of the first attempt
/// @throws DataError, CommError, Error (130)
void upload_object(const LocalFile& file, const LfsObject& object, const std::string& branch,
                   LfsPlace place, UploadApi& api, SentTally& tally);

/// A file's checksum, in hexadecimal digits.   @throws DataError if it cannot be read; Error (130)
std::string digest_of(const LocalFile& file, Checksum::Kind kind, const ShouldStop& should_stop);
/// The first bytes. @throws DataError
std::string beginning_of(const LocalFile& file, size_t num_bytes);

}  // namespace sftrun::hub
