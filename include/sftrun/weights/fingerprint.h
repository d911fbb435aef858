#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "sftrun/core/file_hash.h"
#include "sftrun/weights/checkpoint.h"

/// Fingerprint of all bytes of a model's weights.
namespace sftrun::weights {

struct FileHash {
  std::string name;  ///< of the file, without its directory
  std::string hash;  ///< of its tensor data
};

/// The hashes of models' files that are kept in the user's cache.
FileHashes remembered_hashes();
/// Reads every byte of the weights, unless their hashes are cached.
/// @throws DataError; FileHashes::Stopped
std::vector<FileHash> hash_weights(const Checkpoint& checkpoint, const FileHashes& hashes,
                                   const std::stop_token& stop = {});
/// Fingerprint of the names, shapes, formats and sizes of all tensors.
std::string layout_fingerprint(const Checkpoint& checkpoint);
/// Fingerprint of layout and data.   @param files from hash_weights
std::string fingerprint(const Checkpoint& checkpoint, const std::vector<FileHash>& files);
/// Whether `print`, written by this or an earlier version, is that of these weights.
bool has_fingerprint(const Checkpoint& checkpoint, const std::string& print,
                     const FileHashes& hashes);

}  // namespace sftrun::weights
