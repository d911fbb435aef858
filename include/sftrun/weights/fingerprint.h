#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "sftrun/core/file_hash.h"
#include "sftrun/weights/checkpoint.h"

/// What tells a model's weights from others: all bytes of them.
namespace sftrun::weights {

struct FileHash {
  std::string name;  ///< of the file, without its folder
  std::string hash;  ///< of its tensors' bytes
};

/// Reads every byte of the weights, unless their hashes are remembered.
/// @throws DataError; FileHashes::Stopped
std::vector<FileHash> hash_weights(const Checkpoint& checkpoint, const FileHashes& hashes,
                                   const std::stop_token& stop = {});
/// Of the names, shapes and types of its tensors.
std::string layout_fingerprint(const Checkpoint& checkpoint);
/// Of both.   @param files from hash_weights
std::string fingerprint(const Checkpoint& checkpoint, const std::vector<FileHash>& files);
/// Whether a fingerprint, of this or an earlier version, is of these weights.
bool has_fingerprint(const Checkpoint& checkpoint, const std::string& print,
                     const FileHashes& hashes);

}  // namespace sftrun::weights
