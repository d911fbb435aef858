#include "checkpoint_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"

namespace sftrun::train {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

/// Files with the records of what each rank wrote, until all are in state.json.
constexpr std::string_view kRecordsOfRank = "written-rank-";

/// The name of a part in its file: parts of one tensor may be in one file.
std::string part_name(const std::string& tensor, int64_t begin) {
  return fmt::format("{}@{}", tensor, begin);
}

bool is_file_of(const std::string& file, const std::string& kind) {
  return file.starts_with(kind + "-rank-") && file.ends_with(".safetensors");
}

/// The ranges of each tensor that the files of a directory have, in ascending order.
Json ranges_in(const fs::path& directory, const std::string& kind) {
  std::map<std::string, std::map<int64_t, Json>> ranges;
  for (const fs::path& found : entries_of(directory)) {
    const std::string file = found.filename().string();
    if (!is_file_of(file, kind)) continue;
    const weights::SafetensorsFile content(found);
    for (const weights::SafetensorsEntry& entry : content.entries()) {
      const size_t at = entry.name.rfind('@');
      const int64_t begin = std::stoll(entry.name.substr(at + 1));
      ranges[entry.name.substr(0, at)][begin] = {
          {"file", file}, {"begin", begin}, {"numel", entry.shape[0]}};
    }
  }
  Json json = Json::object();
  for (auto& [tensor, by_begin] : ranges)
    for (auto& [begin, range] : by_begin) json[tensor].push_back(std::move(range));
  return json;
}

/// Whether ranges in ascending order are the whole tensor, each value once.
bool covers(const Json& ranges, int64_t numel) {
  int64_t next = 0;
  for (const Json& range : ranges) {
    if (range["begin"].get<int64_t>() != next) return false;
    next += range["numel"].get<int64_t>();
  }
  return next == numel;
}

/// Whether ranges follow each other from 0 on, in files of this kind beside the list.
bool is_usable(const Json& ranges, const std::string& kind) {
  constexpr int64_t kMax = int64_t{1} << 48;
  if (!ranges.is_array() || ranges.empty()) return false;
  int64_t next = 0;
  for (const Json& range : ranges) {
    if (!range.is_object() || !range.contains("file") || !range["file"].is_string()) return false;
    for (const char* key : {"begin", "numel"})
      if (!range.contains(key) || !range[key].is_number_unsigned()) return false;
    const std::string file = range["file"].get<std::string>();
    if (!is_file_of(file, kind) || file.find('/') != std::string::npos) return false;
    const auto numel = range["numel"].get<uint64_t>();
    if (range["begin"].get<uint64_t>() != static_cast<uint64_t>(next) || numel > kMax) return false;
    next += static_cast<int64_t>(numel);
    if (next > kMax) return false;
  }
  return true;
}

}  // namespace

std::vector<StateTensor> trained_parts(const parallel::Strategy& strategy) {
  const layers::OwnedValues& owned = strategy.owned();
  std::vector<StateTensor> parts;
  for (const layers::OwnedValues::Piece& piece : owned.pieces) {
    parts.push_back({piece.parameter->name, owned.flat.master.narrow(0, piece.offset, piece.numel),
                     piece.begin, piece.parameter->whole_shape(), piece.parameter});
  }
  return parts;
}

bool writes_parts(const parallel::Strategy& strategy) {
  return strategy.mesh().is_first_along(strategy.mesh().axes_of_same_values());
}

std::vector<DividedTensor> shapes_of(const std::vector<StateTensor>& parts) {
  std::vector<DividedTensor> shapes;
  for (const StateTensor& part : parts) shapes.push_back({part.name, part.shape});
  return shapes;
}

std::vector<weights::TensorToWrite> tensors_of_parts(const std::vector<StateTensor>& parts) {
  std::vector<weights::TensorToWrite> tensors;
  for (const StateTensor& part : parts) {
    if (part.values.numel() == 0) continue;
    const bool is_bytes = part.values.scalar_type() == at::kByte;
    tensors.push_back(
        {part_name(part.name, part.begin),
         is_bytes ? DType::kU8 : DType::kF32,
         {part.values.numel()},
         [values = part.values.detach().flatten()](void* destination) {
           at::from_blob(destination, values.sizes(), values.scalar_type()).copy_(values);
         }});
  }
  return tensors;
}

void write_parts(const fs::path& directory, int rank,
                 const std::map<std::string, std::vector<weights::TensorToWrite>>& kinds) {
  FileRecords records = FileRecords::object();
  for (const auto& [kind, tensors] : kinds) {
    if (tensors.empty()) continue;
    const std::string file = fmt::format("{}-rank-{:05}.safetensors", kind, rank);
    weights::write_safetensors(directory / file, tensors);
    records[file] = record_of(directory / file);
  }
  write_file_atomically(directory / fmt::format("{}{:05}.json", kRecordsOfRank, rank),
                        records.dump(1) + "\n");
}

FileRecords take_records_of_parts(const fs::path& directory) {
  std::vector<fs::path> lists;
  for (const fs::path& found : entries_of(directory))
    if (found.filename().string().starts_with(kRecordsOfRank)) lists.push_back(found);
  FileRecords records = FileRecords::object();
  for (const fs::path& list : lists) {
    records.update(Json::parse(read_text_file(list)));
    remove_entry(list);
  }
  return records;
}

void write_parts_index(const fs::path& directory, const DividedShapes& shapes) {
  Json index = Json::object();
  for (const auto& [kind, expected] : shapes) {
    index[kind] = ranges_in(directory, kind);
    for (const DividedTensor& tensor : expected) {
      if (covers(index[kind].value(tensor.name, Json::array()),
                 c10::multiply_integers(tensor.shape)))
        continue;
      throw DeviceError(
          fmt::format("the ranks did not write all parts of {} into one folder", tensor.name),
          directory.string(), "put output.dir on a file system that all machines of the run share");
    }
  }
  write_file_atomically(directory / kPartsIndex, index.dump(1) + "\n");
}

DividedTensors::DividedTensors(const fs::path& checkpoint, const std::string& kind)
    : index_path_(checkpoint / kPartsIndex) {
  const Json all = Json::parse(read_text_file(index_path_), nullptr, /*allow_exceptions=*/false);
  const bool has_kind = all.is_object() && all.contains(kind) && all[kind].is_object();
  if (!has_kind || !std::all_of(all[kind].begin(), all[kind].end(),
                                [&](const Json& ranges) { return is_usable(ranges, kind); }))
    throw DataError("the checkpoint's list of parts is damaged", index_path_.string(), kDamageFix);
  index_ = all[kind];
  for (const auto& [tensor, ranges] : index_.items()) {
    for (const Json& range : ranges) {
      const std::string file = range.at("file").get<std::string>();
      if (!files_.contains(file)) files_.emplace(file, weights::SafetensorsFile(checkpoint / file));
    }
  }
}

void DividedTensors::read(const StateTensor& part, at::Tensor to) const {
  const int64_t end = part.begin + to.numel();
  const at::Tensor flat = to.view({-1});
  int64_t done = 0;
  for (const Json& range : index_.value(part.name, Json::array())) {
    const int64_t begin = range.at("begin").get<int64_t>(), first = std::max(begin, part.begin),
                  last = std::min(begin + range.at("numel").get<int64_t>(), end);
    if (first >= last) continue;
    const weights::SafetensorsEntry* entry =
        files_.at(range.at("file").get<std::string>()).find(part_name(part.name, begin));
    const auto size = static_cast<int64_t>(to.itemsize());
    if (entry == nullptr || entry->dtype != (to.scalar_type() == at::kByte ? "U8" : "F32") ||
        static_cast<int64_t>(entry->bytes.size()) < (last - begin) * size)
      break;
    flat.narrow(0, first - part.begin, last - first)
        .copy_(at::from_blob(const_cast<std::byte*>(entry->bytes.data()) + (first - begin) * size,
                             {last - first}, to.scalar_type()));
    done += last - first;
  }
  if (done == to.numel()) return;
  throw DataError(
      fmt::format("the checkpoint lacks {} or has it in another size", part.name),
      index_path_.string(),
      "it was written by a run with other settings, or it is damaged; use another output.dir, or "
      "start over with --overwrite");
}

}  // namespace sftrun::train
