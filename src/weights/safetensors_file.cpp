#include <algorithm>
#include <array>
#include <utility>

#include "byte_cursor.h"
#include "json_text.h"
#include "sftrun/core/strings.h"
#include "sftrun/weights/safetensors.h"
#include "sftrun/weights/safetensors_header.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the reference implementation
constexpr const char* kFixTruncated = "the file is truncated or corrupt: download or copy it again";
constexpr const char* kFixHeader =
    "the file's header breaks the safetensors format: download it again, or write it again with "
    "the "
    "safetensors library";

constexpr std::array<std::pair<std::string_view, int64_t>, 20> kTypeBits = {{
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
    {"I32", 32},    {"U32", 32}, {"F32", 32}, {"I64", 64},    {"U64", 64},
    {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
}};

int64_t bits_of(const std::string& dtype) {
  const auto found = std::find_if(kTypeBits.begin(), kTypeBits.end(),
                                  [&](const auto& type) { return type.first == dtype; });
  return found == kTypeBits.end() ? 0 : found->second;
}

/// Parses a file's header. Each error names the tensor.
class HeaderReader {
 public:
  HeaderReader(uint64_t data_size, const std::string& where)
      : data_size_(data_size), where_(where) {}

  SafetensorsPlace read(const std::string& name, const json& description) {
    if (!description.is_object()) fail(name, "has a description that is not a JSON object");
    for (const auto& [key, unused] : description.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        fail(name, fmt::format("has the unknown key `{}`", key));
    }
    SafetensorsPlace entry;
    entry.name = name;
    const auto dtype = description.find("dtype");
    if (dtype == description.end() || !dtype->is_string()) fail(name, "has no dtype");
    entry.dtype = dtype->get<std::string>();
    for (const uint64_t size : numbers(name, description, "shape"))
      entry.shape.push_back(static_cast<int64_t>(size));
    const std::vector<uint64_t> offsets = numbers(name, description, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) fail(name, "has invalid data_offsets");
    if (offsets[1] > data_size_) {
      fail(name, fmt::format("ends at byte {}, but the data has {} bytes", offsets[1], data_size_),
           kFixTruncated);
    }
    entry.begin = offsets[0], entry.size = offsets[1] - offsets[0];
    check_size(entry);
    return entry;
  }

  /// The format requires that the tensors cover the data without gaps or overlaps.
  void check_cover(const std::vector<SafetensorsPlace>& entries) const {
    uint64_t position = 0;
    for (const SafetensorsPlace& entry : entries) {
      if (entry.begin < position) fail(entry.name, "overlaps the tensor before it");
      if (entry.begin > position) fail(entry.name, "begins after a gap in the data");
      position += entry.size;
    }
    const uint64_t unused = data_size_ - position;
    if (unused > 0)
      throw DataError(fmt::format("{} bytes at the end belong to no tensor", unused), where_,
                      kFixHeader);
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what,
                         const std::string& fix = kFixHeader) const {
    throw DataError(fmt::format("tensor `{}` {}", name, what), where_, fix);
  }

  std::vector<uint64_t> numbers(const std::string& name, const json& description,
                                const char* key) const {
    const auto found = description.find(key);
    if (found == description.end() || !found->is_array()) fail(name, fmt::format("has no {}", key));
    std::vector<uint64_t> result;
    for (const json& number : *found) {
      if (!number.is_number_unsigned() || number.get<uint64_t>() >> 63 != 0)
        fail(name, fmt::format("has an invalid {}", key));
      result.push_back(number.get<uint64_t>());
    }
    return result;
  }

  void check_size(const SafetensorsPlace& entry) const {
    const int64_t bits = bits_of(entry.dtype);
    if (bits == 0) fail(entry.name, fmt::format("has the unknown dtype \"{}\"", entry.dtype));
    const std::optional<int64_t> numel = checked_numel(entry.shape);
    int64_t total_bits;
    if (!numel || __builtin_mul_overflow(*numel, bits, &total_bits)) {
      fail(entry.name,
           fmt::format("has the shape {}, which is too large", shape_text(entry.shape)));
    }
    if (total_bits % 8 != 0 || static_cast<uint64_t>(total_bits / 8) != entry.size) {
      fail(entry.name,
           fmt::format("of shape {} in {} takes {} bytes, but its data_offsets span {}",
                       shape_text(entry.shape), entry.dtype, total_bits / 8, entry.size));
    }
  }

  uint64_t data_size_;
  const std::string& where_;
};

uint64_t read_header_length(ByteCursor& cursor, const std::string& where) {
  const auto length = cursor.read<uint64_t>("the header length");
  if (length > kMaxHeaderBytes) {
    throw DataError(
        fmt::format("not a safetensors file: the header length {} is over the limit of {} bytes",
                    length, kMaxHeaderBytes),
        where, "name a safetensors file; if it is one, download it again");
  }
  return length;
}

json read_header(ByteCursor& cursor, const std::string& where) {
  const uint64_t length = read_header_length(cursor, where);
  const std::span<const std::byte> bytes = cursor.take(length, "the header");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with('{'))
    throw DataError("not a safetensors file: the header is not a JSON object", where,
                    kFixTruncated);
  return parse_json(text, where, EqualKeys::kRefused);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  parse(file_.bytes(), path.string());
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, const std::string& where) {
  parse(bytes, where);
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> beginning, uint64_t file_size,
                                           const std::string& where) {
  ByteCursor cursor(beginning, where);
  const json description_of = read_header(cursor, where);
  SafetensorsHeader header{.data_begin = cursor.offset()};
  HeaderReader reader(file_size - header.data_begin, where);
  for (const auto& [name, description] : description_of.items()) {
    if (name == "__metadata__") {
      header.metadata = description;
    } else {
      header.tensors.push_back(reader.read(name, description));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.size) < std::pair(b.begin, b.size);
  });
  reader.check_cover(header.tensors);
  return header;
}

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  const std::string where = file.path().string();
  const uint64_t size = file.size();
  std::string beginning = file.read(0, std::min<uint64_t>(size, sizeof(uint64_t)));
  ByteCursor cursor(std::as_bytes(std::span(beginning)), where);
  const uint64_t length = read_header_length(cursor, where);
  beginning = file.read(0, cursor.offset() + std::min(length, size - cursor.offset()));
  return parse_safetensors_header(std::as_bytes(std::span(beginning)), size, where);
}

void SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& where) {
  SafetensorsHeader header = parse_safetensors_header(bytes, bytes.size(), where);
  data_begin_ = header.data_begin;
  metadata_ = std::move(header.metadata);
  const std::span<const std::byte> data = bytes.subspan(data_begin_);
  for (SafetensorsPlace& tensor : header.tensors)
    entries_.push_back({std::move(tensor.name), std::move(tensor.dtype), std::move(tensor.shape),
                        data.subspan(tensor.begin, tensor.size)});
  for (size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].name] = i;
}

void SafetensorsFile::rename(const std::function<std::string(const std::string&)>& name_of,
                             const std::string& where) {
  index_.clear();
  for (size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].name = name_of(entries_[i].name);
    if (!index_.emplace(entries_[i].name, i).second)
      throw DataError(fmt::format("the tensor `{}` appears twice", entries_[i].name), where,
                      "write the file again with one of them");
  }
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

}  // namespace sftrun::weights
