#include "hf_files.h"

#include <set>

#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

[[noreturn]] void fail_no_weights(const fs::path& directory) {
  const bool pickled = leads_to_file(directory / "pytorch_model.bin") ||
                       leads_to_file(directory / "pytorch_model.bin.index.json");
  throw DataError(fmt::format("no {} and no {} in this directory", kSingle, kIndex),
                  directory.string(),
                  pickled ? "pytorch_model.bin is not supported: save the model as safetensors"
                          : "download or copy the model again");
}

/// Shard file by tensor name.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const json index = parse_json(read_text_file(path), path.string());
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || weight_map == index.end() || !weight_map->is_object()) {
    throw DataError("`weight_map` is missing", path.string());
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, file] : weight_map->items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    const bool is_cut = shard.find('\0') != std::string::npos;  // where the system takes the name
    if (shard.empty() || is_cut || fs::path(shard).filename() != shard) {
      throw DataError(fmt::format("tensor `{}` is mapped to {}, which is not a file name",
                                  excerpt(name), excerpt(file.dump())),
                      path.string());
    }
    shard_of[name] = shard;
  }
  return shard_of;
}

/// Buffers that some transformers versions save; they are recomputed.
bool is_ignorable(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace

HfFiles::HfFiles(const fs::path& directory,
                 std::function<std::string(const std::string& stored)> in_model)
    : in_model_(std::move(in_model)) {
  if (has_optional_file(directory / kSingle)) {
    open_file(directory / kSingle);
  } else if (has_optional_file(directory / kIndex)) {
    open_shards(directory);
  } else {
    fail_no_weights(directory);
  }
}

void HfFiles::open_shards(const fs::path& directory) {
  const fs::path index_path = directory / kIndex;
  const std::map<std::string, std::string> shard_of = read_index(index_path);
  std::set<std::string> opened;
  for (const auto& [name, shard] : shard_of) {
    if (!opened.insert(shard).second) continue;
    if (!has_optional_file(directory / shard)) {
      throw DataError(fmt::format("the shard {} is missing", excerpt(shard)), index_path.string(),
                      "download or copy it again");
    }
    open_file(directory / shard);
  }
  require_indexed(shard_of, index_path);
}

void HfFiles::require_indexed(const std::map<std::string, std::string>& shard_of,
                              const fs::path& index_path) const {
  for (const auto& [name, shard] : shard_of) {
    if (is_ignorable(name)) continue;
    const auto found = located_.find(in_model_(name));
    if (found == located_.end() || found->second.file->filename() != shard) {
      throw DataError(
          fmt::format("tensor `{}` is not in {}, although the index lists it there", name, shard),
          index_path.string());
    }
  }
}

void HfFiles::open_file(const fs::path& path) {
  files_.push_back(std::make_unique<File>(File{path, SafetensorsFile(path)}));
  for (const SafetensorsEntry& entry : files_.back()->content.entries()) {
    if (is_ignorable(entry.name)) continue;
    const auto [position, added] =
        located_.emplace(in_model_(entry.name), Located{&entry, &files_.back()->path});
    if (!added) {
      throw DataError(fmt::format("tensor `{}` is also in {}", entry.name,
                                  position->second.file->filename().string()),
                      path.string());
    }
  }
}

const SafetensorsEntry* HfFiles::find(const std::string& name) const {
  const auto found = located_.find(name);
  return found == located_.end() ? nullptr : found->second.entry;
}

std::vector<Checkpoint::WeightFile> HfFiles::weight_files() const {
  std::vector<Checkpoint::WeightFile> files;
  for (const auto& file : files_) files.push_back({file->path, file->content.data_begin()});
  return files;
}

void HfFiles::release(std::span<const std::byte> part) const {
  for (const auto& file : files_) file->content.release(part);
}

}  // namespace sftrun::weights
