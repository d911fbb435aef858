#include "sftrun/weights/fingerprint.h"

#include "sftrun/core/xxh3.h"

namespace sftrun::weights {
namespace {

// Prefix of fingerprints of all bytes. Earlier versions hashed a sample of each tensor, without a
// prefix.
constexpr std::string_view kOfAllBytes = "xxh3-";

}  // namespace

FileHashes remembered_hashes() {
  const std::filesystem::path cache = user_cache();
  return FileHashes(cache.empty() ? cache : cache / "hashes");
}

std::vector<FileHash> hash_weights(const Checkpoint& checkpoint, const FileHashes& hashes,
                                   const std::stop_token& stop) {
  std::vector<FileHash> files;
  for (const Checkpoint::WeightFile& file : checkpoint.weight_files())
    files.push_back({file.path.filename().string(), hashes.of(file.path, file.begin, stop)});
  return files;
}

std::string layout_fingerprint(const Checkpoint& checkpoint) {
  nlohmann::json layout = nlohmann::json::array();
  for (const TensorInfo& info : checkpoint.tensors())
    layout.push_back({info.printed_name(), info.printed_shape(), info.format, info.stored_bytes});
  return xxh3_128(layout.dump());
}

std::string fingerprint(const Checkpoint& checkpoint, const std::vector<FileHash>& files) {
  std::string all = layout_fingerprint(checkpoint);
  for (const FileHash& file : files) all += file.hash;
  return std::string(kOfAllBytes) + xxh3_128(all);
}

bool has_fingerprint(const Checkpoint& checkpoint, const std::string& print,
                     const FileHashes& hashes) {
  if (!print.starts_with(kOfAllBytes)) return print == checkpoint.sampled_fingerprint();
  return print == fingerprint(checkpoint, hash_weights(checkpoint, hashes));
}

}  // namespace sftrun::weights
