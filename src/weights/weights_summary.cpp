#include "sftrun/weights/weights_summary.h"

#include "sftrun/core/entries.h"
#include "sftrun/core/presence.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::weights {
namespace fs = std::filesystem;
namespace {

void add(WeightsSummary& summary, const std::string& type) {
  ++summary.tensors;
  ++summary.types[type];
}

void add_file(WeightsSummary& summary, const fs::path& path) {
  if (path.extension() == ".gguf") {
    const GgufFile file(path);
    for (const GgufTensor& tensor : file.tensors()) add(summary, std::string(tensor.type.name));
  } else if (path.extension() == ".safetensors") {
    const SafetensorsFile file(path);
    for (const SafetensorsEntry& entry : file.entries()) add(summary, entry.dtype);
  } else {
    return;
  }
  summary.bytes += bytes_of_file(path);
}

/// nullopt: as many as in the files.
std::optional<uint64_t> bytes_in_memory(const PackedMatrix& packed) {
  const CodedMatrix* first = first_coded(packed);
  if (first == nullptr || first->block_size > 0) return std::nullopt;
  const auto* parts = std::get_if<CodedParts>(&packed);
  if (parts == nullptr) return first->bytes_in_memory();
  int64_t bytes = 0;
  for (const CodedMatrix& part : parts->parts) bytes += part.bytes_in_memory();
  return bytes;
}

}  // namespace

WeightsSummary summarize_weights(const fs::path& path) {
  WeightsSummary summary;
  if (!is_folder(path)) {
    add_file(summary, path);
    return summary;
  }
  for (const fs::path& entry : entries_of(path)) add_file(summary, entry);
  return summary;
}

nlohmann::ordered_json describe_written(const fs::path& path, const std::string& format,
                                        const std::string& dtype,
                                        const nlohmann::ordered_json& measured) {
  const WeightsSummary summary = summarize_weights(path);
  return {{"path", path.string()},  {"format", format},           {"dtype", dtype},
          {"bytes", summary.bytes}, {"tensors", summary.tensors}, {"types", summary.types},
          {"measured", measured}};
}

std::string packed_format(const Checkpoint& checkpoint) {
  std::map<std::string, int64_t> values;
  std::string most;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (!checkpoint.packed(tensor.name)) continue;
    values[tensor.format] += tensor.numel();
    if (most.empty() || values[tensor.format] > values[most]) most = tensor.format;
  }
  return most;
}

std::map<std::string, uint64_t> packed_bytes(const Checkpoint& checkpoint) {
  std::map<std::string, uint64_t> bytes;
  for (const TensorInfo& tensor : checkpoint.tensors())
    if (const auto packed = checkpoint.packed(tensor.name))
      bytes[tensor.name] = bytes_in_memory(*packed).value_or(tensor.stored_bytes);
  return bytes;
}

std::map<std::string, int64_t> packed_blocks(const Checkpoint& checkpoint) {
  std::map<std::string, int64_t> blocks;
  for (const TensorInfo& tensor : checkpoint.tensors())
    if (const auto packed = checkpoint.packed(tensor.name))
      blocks[tensor.name] = values_per_block(*packed);
  return blocks;
}

}  // namespace sftrun::weights
