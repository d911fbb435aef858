#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "byte_cursor.h"
#include "gguf_values.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/core/utf8.h"
#include "sftrun/weights/gguf.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxInlineStrings = 64;
constexpr uint64_t kMaxInlineNumbers = 512;  // enough for one per layer
constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxDimensions = 4;  // ggml's limit

uint64_t scalar_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
      return 8;
    default:
      return 0;
  }
}

/// The shortest decimal number that rounds to this float.
double shortest(float value) {
  if (!std::isfinite(value)) return value;
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  double result = value;
  std::from_chars(text, end.ptr, result);
  return result;
}

std::string checked_name(std::string_view text, const char* what, uint64_t number,
                         const std::string& where) {
  if (!is_valid_utf8(text)) throw DataError(fmt::format("{} {} is not UTF-8", what, number), where);
  return std::string(text);
}

json read_scalar(ByteCursor& cursor, uint32_t type, const std::string& key,
                 const std::string& where) {
  const char* what = "a metadata value";
  switch (type) {
    case kU8:
      return cursor.read<uint8_t>(what);
    case kI8:
      return cursor.read<int8_t>(what);
    case kU16:
      return cursor.read<uint16_t>(what);
    case kI16:
      return cursor.read<int16_t>(what);
    case kU32:
      return cursor.read<uint32_t>(what);
    case kI32:
      return cursor.read<int32_t>(what);
    case kF32:
      return shortest(cursor.read<float>(what));
    case kBool:
      return cursor.read<uint8_t>(what) != 0;
    case kU64:
      return cursor.read<uint64_t>(what);
    case kI64:
      return cursor.read<int64_t>(what);
    case kF64:
      return cursor.read<double>(what);
    case kString: {
      const std::string_view text = cursor.read_text("a metadata string");
      if (!is_valid_utf8(text)) throw DataError(fmt::format("`{}` is not UTF-8", key), where);
      return std::string(text);
    }
    default:
      throw DataError(fmt::format("`{}` has the unknown value type {}", key, type), where);
  }
}

void skip_array(ByteCursor& cursor, const std::string& key, const std::string& where, int depth);

/// Moves past `count` elements after checking that they are within the bytes.
void skip_elements(ByteCursor& cursor, uint32_t type, uint64_t count, const std::string& key,
                   const std::string& where, int depth) {
  if (const uint64_t size = scalar_bytes(type)) {
    uint64_t bytes;
    if (__builtin_mul_overflow(size, count, &bytes)) bytes = std::numeric_limits<uint64_t>::max();
    cursor.take(bytes, "a metadata array");
  } else if (type == kString) {
    for (uint64_t i = 0; i < count; ++i) cursor.read_text("a metadata array");
  } else if (type == kArray) {
    if (depth >= kMaxArrayDepth)
      throw DataError(fmt::format("`{}` is nested too deep", key), where);
    for (uint64_t i = 0; i < count; ++i) skip_array(cursor, key, where, depth + 1);
  } else {
    throw DataError(fmt::format("`{}` has the unknown element type {}", key, type), where);
  }
}

void skip_array(ByteCursor& cursor, const std::string& key, const std::string& where, int depth) {
  const auto type = cursor.read<uint32_t>("a metadata array");
  const auto count = cursor.read<uint64_t>("a metadata array");
  skip_elements(cursor, type, count, key, where, depth);
}

}  // namespace

/// Parses one file into a GgufFile.
class GgufFile::Parser {
 public:
  Parser(GgufFile& file, std::span<const std::byte> bytes)
      : file_(file), where_(file.where_), bytes_(bytes), cursor_(bytes, where_) {}

  void run() {
    read_magic();
    const uint64_t num_tensors = read_count("tensors");
    const uint64_t num_keys = read_count("metadata keys");
    for (uint64_t i = 0; i < num_keys; ++i) read_key(i);
    const uint64_t alignment = read_alignment();
    for (uint64_t i = 0; i < num_tensors; ++i) read_tensor(i);
    const uint64_t data = (cursor_.offset() + alignment - 1) / alignment * alignment;
    file_.data_begin_ = data;
    place_tensors(data, alignment);
  }

 private:
  void read_magic() {
    if (bytes_.size() < 4 || cursor_.read<uint32_t>("the header") != kGgufMagic) {
      throw DataError("not a GGUF file: it does not begin with \"GGUF\"", where_,
                      "give a .gguf file, or download it again");
    }
    const auto version = cursor_.read<uint32_t>("the header");
    if ((version & 0xffffU) == 0 && version != 0)
      throw DataError("big-endian GGUF files are not supported", where_);
    if (version != 2 && version != 3) {
      throw DataError(fmt::format("GGUF version {} is not supported", version), where_,
                      "supported: versions 2 and 3");
    }
  }

  uint64_t read_count(const char* what) {
    constexpr uint64_t kFewestBytes = 12;  // of a tensor or key: the length of its name, and a type
    const auto count = cursor_.read<uint64_t>("the header");
    if (count > cursor_.remaining() / kFewestBytes) {
      throw DataError(fmt::format("the header declares {} {}, more than fit in {}", count, what,
                                  format_bytes(bytes_.size())),
                      where_, "the file is corrupt: download or copy it again");
    }
    return count;
  }

  void read_key(uint64_t number) {
    const std::string key =
        checked_name(cursor_.read_text("a metadata key"), "metadata key", number, where_);
    if (file_.metadata_.contains(key) || file_.arrays_.contains(key)) {
      throw DataError(fmt::format("the metadata key `{}` appears twice", key), where_);
    }
    const auto type = cursor_.read<uint32_t>("a metadata value");
    const size_t begin = cursor_.offset();
    if (type == kArray) {
      read_array(key);
    } else {
      file_.metadata_[key] = read_scalar(cursor_, type, key, where_);
    }
    file_.stored_.push_back({key, type, bytes_.subspan(begin, cursor_.offset() - begin)});
  }

  void read_array(const std::string& key) {
    Array array;
    array.type = cursor_.read<uint32_t>("a metadata array");
    array.count = cursor_.read<uint64_t>("a metadata array");
    array.bytes = cursor_.rest();
    const uint64_t most = scalar_bytes(array.type) > 0 ? kMaxInlineNumbers : kMaxInlineStrings;
    if (array.count <= most && array.type != kArray) {
      json& values = file_.metadata_[key] = json::array();
      for (uint64_t i = 0; i < array.count; ++i) {
        values.push_back(read_scalar(cursor_, array.type, key, where_));
      }
    } else {
      skip_elements(cursor_, array.type, array.count, key, where_, 0);
    }
    file_.arrays_[key] = array;
  }

  uint64_t read_alignment() const {
    const auto found = file_.metadata_.find("general.alignment");
    if (found == file_.metadata_.end()) return kGgufAlignment;
    const bool number = found->is_number_unsigned();
    if (!number || !std::has_single_bit(found->get<uint64_t>()) ||
        found->get<uint64_t>() > (1U << 20)) {
      throw DataError("`general.alignment` must be a power of two", where_);
    }
    return found->get<uint64_t>();
  }

  void read_tensor(uint64_t number) {
    GgufTensor tensor;
    tensor.name =
        checked_name(cursor_.read_text("a tensor name"), "the name of tensor", number, where_);
    const auto num_dimensions = cursor_.read<uint32_t>("the tensor list");
    if (num_dimensions > kMaxDimensions)
      fail(tensor, fmt::format("has {} dimensions", num_dimensions));
    for (uint32_t i = 0; i < num_dimensions; ++i) {
      const auto size = cursor_.read<uint64_t>("the tensor list");
      if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        fail(tensor, "is too large");
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    const auto type = cursor_.read<uint32_t>("the tensor list");
    const GgmlTypeInfo* info = ggml_type_info(type);
    if (!info) fail(tensor, fmt::format("has the unknown type {}", type));
    tensor.type = *info;
    offsets_.push_back(cursor_.read<uint64_t>("the tensor list"));
    if (!file_.index_.emplace(tensor.name, file_.tensors_.size()).second)
      fail(tensor, "appears twice");
    file_.tensors_.push_back(std::move(tensor));
  }

  /// Size of a tensor in bytes. @throws DataError for sizes that overflow, or rows that are not
  /// whole blocks
  uint64_t size_of(const GgufTensor& tensor) const {
    const std::optional<int64_t> numel = checked_numel(tensor.shape);
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % tensor.type.block_size != 0) {
      fail(tensor, fmt::format("has rows of {} values, not a multiple of {}'s block size {}", row,
                               tensor.type.name, tensor.type.block_size));
    }
    int64_t bytes;
    if (!numel ||
        __builtin_mul_overflow(*numel / tensor.type.block_size, tensor.type.block_bytes, &bytes)) {
      fail(tensor, fmt::format("has the shape {}, which is too large", shape_text(tensor.shape)));
    }
    return static_cast<uint64_t>(bytes);
  }

  void place_tensors(uint64_t data, uint64_t alignment) {
    const uint64_t available = data < bytes_.size() ? bytes_.size() - data : 0;
    std::vector<std::pair<uint64_t, size_t>> order;
    for (size_t i = 0; i < file_.tensors_.size(); ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      const uint64_t size = size_of(tensor), offset = offsets_[i];
      if (offset % alignment != 0)
        fail(tensor,
             fmt::format("begins at offset {}, which is not aligned to {}", offset, alignment));
      if (offset > available || size > available - offset) {
        fail(tensor,
             fmt::format("lies outside the file: {} bytes at offset {}, but the data has {} bytes",
                         size, offset, available),
             "the file is truncated or corrupt: download or copy it again");
      }
      if (size > 0) {
        tensor.bytes = bytes_.subspan(data + offset, size);
        order.emplace_back(offset, i);
      }
    }
    std::sort(order.begin(), order.end());
    for (size_t i = 1; i < order.size(); ++i) {
      const GgufTensor& before = file_.tensors_[order[i - 1].second];
      if (order[i - 1].first + before.bytes.size() > order[i].first) {
        fail(file_.tensors_[order[i].second], fmt::format("overlaps tensor `{}`", before.name));
      }
    }
  }

  [[noreturn]] void fail(const GgufTensor& tensor, const std::string& what,
                         const std::string& fix = {}) const {
    throw DataError(fmt::format("tensor `{}` {}", tensor.name, what), where_, fix);
  }

  GgufFile& file_;
  const std::string& where_;
  std::span<const std::byte> bytes_;
  ByteCursor cursor_;
  std::vector<uint64_t> offsets_;
};

int64_t GgufTensor::numel() const {
  return checked_numel(shape).value_or(0);
}

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path), where_(path.string()) {
  Parser(*this, file_.bytes()).run();
}

GgufFile::GgufFile(std::span<const std::byte> bytes, std::string where) : where_(std::move(where)) {
  Parser(*this, bytes).run();
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const GgufFile::Array* GgufFile::array(const std::string& key) const {
  const auto found = arrays_.find(key);
  return found == arrays_.end() ? nullptr : &found->second;
}

std::vector<std::string> GgufFile::strings(const std::string& key) const {
  const Array* stored = array(key);
  if (!stored) return {};
  if (stored->type != kString)
    throw DataError(fmt::format("`{}` must be an array of strings", key), where_);
  ByteCursor cursor(stored->bytes, where_);
  std::vector<std::string> result;
  result.reserve(stored->count);
  for (uint64_t i = 0; i < stored->count; ++i)
    result.emplace_back(cursor.read_text("a metadata array"));
  return result;
}

std::vector<float> GgufFile::floats(const std::string& key) const {
  const Array* stored = array(key);
  if (!stored) return {};
  if (stored->type != kF32)
    throw DataError(fmt::format("`{}` must be an array of 32-bit floats", key), where_);
  std::vector<float> result(stored->count);
  if (!result.empty())
    std::memcpy(result.data(), stored->bytes.data(), result.size() * sizeof(float));
  return result;
}

std::vector<int64_t> GgufFile::ints(const std::string& key) const {
  const Array* stored = array(key);
  if (!stored) return {};
  ByteCursor cursor(stored->bytes, where_);
  std::vector<int64_t> result;
  for (uint64_t i = 0; i < stored->count; ++i) {
    const json value =
        scalar_bytes(stored->type) > 0 ? read_scalar(cursor, stored->type, key, where_) : json();
    if (!value.is_number_integer())
      throw DataError(fmt::format("`{}` must be an array of integers", key), where_);
    result.push_back(value.get<int64_t>());
  }
  return result;
}

}  // namespace sftrun::weights
