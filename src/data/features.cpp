#include "sftrun/data/features.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "sftrun/core/error.h"
#include "sftrun/core/input_file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/weights/convert.h"
#include "sftrun/weights/safetensors_header.h"

namespace sftrun::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFeaturesFix =
    "save the features as [rows, width] with numpy.save or safetensors' save_file";

[[noreturn]] void refuse_file(const fs::path& path, const std::string& what,
                              const std::string& fix = kFeaturesFix) {
  throw DataError(what, path.string(), fix);
}

enum class FeatureType : uint8_t { kF16, kBF16, kF32, kF64 };
constexpr std::array<int64_t, 4> kFeatureBytes = {2, 2, 4, 8};

int64_t size_of_type(FeatureType type) {
  return kFeatureBytes[static_cast<size_t>(type)];
}

/// Where the values of a file are, and their shape.
struct FeatureValues {
  FeatureType type = FeatureType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, size = 0;  // in bytes
};

// ---- NumPy's format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

constexpr std::string_view kNpyMagic = "\x93NUMPY";

/// Reads the header's dict, a literal of Python as numpy.save writes it.
class NpyHeader {
 public:
  NpyHeader(std::string_view text, const fs::path& path) : text_(text), path_(path) {}

  FeatureType type() const {
    const std::string_view descr = text_of("descr");
    constexpr std::array<std::pair<std::string_view, FeatureType>, 3> kTypes = {
        {{"<f2", FeatureType::kF16}, {"<f4", FeatureType::kF32}, {"<f8", FeatureType::kF64}}};
    for (const auto& [name, type] : kTypes)
      if (descr == name) return type;
    refuse_file(path_, fmt::format("the array has values of type {}", excerpt(std::string(descr))),
                "save it as float32: numpy.save(path, features.astype('<f4'))");
  }
  bool is_fortran() const { return value_of("fortran_order").starts_with("True"); }
  std::vector<int64_t> shape() const {
    std::string_view rest = value_of("shape");
    if (!rest.starts_with('(')) refuse_header();
    rest.remove_prefix(1);
    std::vector<int64_t> sizes;
    while (true) {
      rest.remove_prefix(std::min(rest.find_first_not_of(" ,"), rest.size()));
      if (rest.starts_with(')')) return sizes;
      int64_t size = 0;
      const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
      if (code != std::errc() || size < 0) refuse_header();
      sizes.push_back(size);
      rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    }
  }

 private:
  [[noreturn]] void refuse_header() const {
    refuse_file(path_, "the header of the array is damaged");
  }
  /// What follows a key.
  std::string_view value_of(std::string_view key) const {
    const std::string quoted = fmt::format("'{}':", key);
    const size_t at = text_.find(quoted);
    if (at == std::string_view::npos) refuse_header();
    std::string_view value = text_.substr(at + quoted.size());
    value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
    return value;
  }
  std::string_view text_of(std::string_view key) const {
    std::string_view value = value_of(key);
    if (!value.starts_with('\'')) refuse_header();
    value.remove_prefix(1);
    return value.substr(0, value.find('\''));
  }

  std::string_view text_;
  const fs::path& path_;
};

FeatureValues npy_values(const InputFile& file) {
  constexpr size_t kVersion = 6, kShortLength = 8, kShortBegin = 10, kLongBegin = 12;
  constexpr uint64_t kMaxHeaderBytes = 1 << 20;  // those of plain arrays have some 100 bytes
  const std::filesystem::path& path = file.path();
  const std::string start = file.read(0, std::min<uint64_t>(file.size(), kLongBegin));
  if (!start.starts_with(kNpyMagic)) refuse_file(path, "the file is neither .npy nor .safetensors");
  if (start.size() < kLongBegin) refuse_file(path, "the file ends within its header");
  const auto byte = [&](size_t at) { return size_t{static_cast<uint8_t>(start[at])}; };
  const bool is_long = byte(kVersion) > 1;  // version 1 has two bytes of length, later ones four
  size_t length = byte(kShortLength) | byte(kShortLength + 1) << 8;
  if (is_long) length |= byte(kShortLength + 2) << 16 | byte(kShortLength + 3) << 24;
  const size_t begin = is_long ? kLongBegin : kShortBegin;
  if (length > file.size() - begin) refuse_file(path, "the file ends within its header");
  if (length > kMaxHeaderBytes) refuse_file(path, "the header of the array is damaged");
  const std::string text = file.read(begin, length);
  const NpyHeader header(text, path);
  if (header.is_fortran())
    refuse_file(path, "the array is in Fortran's order",
                "save it in C's order: numpy.save(path, numpy.ascontiguousarray(features))");
  return {header.type(), header.shape(), begin + length, file.size() - begin - length};
}

// ---- safetensors

FeatureValues safetensors_values(const InputFile& file) {
  const std::filesystem::path& path = file.path();
  const weights::SafetensorsHeader header = weights::read_safetensors_header(file);
  const auto& tensors = header.tensors;
  auto found = std::find_if(tensors.begin(), tensors.end(),
                            [](const auto& tensor) { return tensor.name == "features"; });
  if (found == tensors.end() && tensors.size() == 1) found = tensors.begin();
  if (found == tensors.end())
    refuse_file(path,
                fmt::format("the file has {}, and none is named `features`",
                            counted(std::ssize(tensors), "tensor")),
                "name the tensor of the features `features`");
  constexpr std::array<std::pair<std::string_view, FeatureType>, 4> kTypes = {
      {{"F16", FeatureType::kF16},
       {"BF16", FeatureType::kBF16},
       {"F32", FeatureType::kF32},
       {"F64", FeatureType::kF64}}};
  for (const auto& [name, type] : kTypes)
    if (found->dtype == name)
      return {type, found->shape, header.data_begin + found->begin, found->size};
  refuse_file(path, fmt::format("the tensor has values of type {}", found->dtype),
              "save it as float32");
}

/// @param bytes of values of `type`   @param to [values of `bytes`]
void convert_features(FeatureType type, std::span<const std::byte> bytes, std::span<float> to) {
  if (type == FeatureType::kF64) {
    for (size_t i = 0; i < to.size(); ++i) {
      double wide = 0;
      std::memcpy(&wide, bytes.data() + i * sizeof(wide), sizeof(wide));
      to[i] = static_cast<float>(wide);
    }
    return;
  }
  const DType from = type == FeatureType::kF16    ? DType::kF16
                     : type == FeatureType::kBF16 ? DType::kBF16
                                                  : DType::kF32;
  weights::convert(from, bytes.data(), DType::kF32, reinterpret_cast<std::byte*>(to.data()),
                   std::ssize(to));
}

/// An opened file of features.
class FeatureFile {
 public:
  explicit FeatureFile(const fs::path& path)
      : file_(path),
        values_(path.extension() == ".safetensors" ? safetensors_values(file_)
                                                   : npy_values(file_)) {}

  /// @throws DataError unless the file fits the projector
  int64_t num_rows(const FeatureProjector& projector) const {
    const std::vector<int64_t>& shape = values_.shape;
    if (shape.empty() || shape.back() != projector.input_width)
      refuse_file(file_.path(),
                  fmt::format("the features have the shape [{}], and the projector {} takes a "
                              "width of {}",
                              fmt::join(shape, ", "), projector.name, projector.input_width),
                  "give the projector other features, or set its input_width");
    int64_t rows = 1;
    constexpr int64_t kMaxRows = 1 << 24;
    for (size_t i = 0; i + 1 < shape.size(); ++i)
      rows = shape[i] > kMaxRows ? kMaxRows + 1 : std::min(rows * shape[i], kMaxRows + 1);
    if (rows == 0 || rows > kMaxRows)
      refuse_file(file_.path(),
                  fmt::format("the features have the shape [{}]", fmt::join(shape, ", ")));
    const int64_t bytes = rows * projector.input_width * size_of_type(values_.type);
    if (static_cast<int64_t>(values_.size) != bytes)
      refuse_file(file_.path(),
                  fmt::format("the file has {} bytes of values, and its shape asks for {}",
                              values_.size, bytes));
    if (rows < projector.tokens)
      refuse_file(
          file_.path(),
          fmt::format("the features have {}, and the projector {} makes {} of them",
                      counted(rows, "row"), projector.name, counted(projector.tokens, "token")),
          fmt::format("set its `tokens` to at most {}", rows));
    return rows;
  }

  std::vector<float> values(int64_t count) const {
    constexpr size_t kPiece = size_t{1} << 18;  // values that are converted together
    const auto width = static_cast<size_t>(size_of_type(values_.type));
    std::vector<float> all(static_cast<size_t>(count));
    std::vector<std::byte> buffer(std::min(kPiece, all.size()) * width);
    for (size_t begin = 0; begin < all.size(); begin += kPiece) {
      const std::span<float> piece =
          std::span(all).subspan(begin, std::min(kPiece, all.size() - begin));
      const std::span<std::byte> bytes = std::span(buffer).first(piece.size() * width);
      file_.read(values_.begin + begin * width, bytes);
      convert_features(values_.type, bytes, piece);
    }
    if (!std::all_of(all.begin(), all.end(), [](float value) { return std::isfinite(value); }))
      refuse_file(file_.path(), "the features have NaN or infinite values", "compute them again");
    return all;
  }

 private:
  InputFile file_;
  FeatureValues values_;
};

/// Means of neighbouring rows.   @param to [tokens, width]
void pool(std::span<const float> values, int64_t rows, int64_t width, int64_t tokens,
          std::span<float> to) {
  std::vector<double> sums(static_cast<size_t>(width));
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t begin = token * rows / tokens, end = ((token + 1) * rows + tokens - 1) / tokens;
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < width; ++i)
        sums[static_cast<size_t>(i)] += values[static_cast<size_t>(row * width + i)];
    for (int64_t i = 0; i < width; ++i)
      to[static_cast<size_t>(token * width + i)] =
          static_cast<float>(sums[static_cast<size_t>(i)] / static_cast<double>(end - begin));
  }
}

/// Whether texts of the token alone become the token, once for each.
bool stands_alone(tokenizer::TokenId id, const tokenizer::Tokenizer& tokenizer) {
  const std::string text = tokenizer.id_to_token(id);
  if (text.empty()) return false;
  return tokenizer.encode("a " + text + text + " a", /*add_special_tokens=*/false).size() ==
             tokenizer.encode("a  a", /*add_special_tokens=*/false).size() + 2 &&
         tokenizer.encode(text + text, /*add_special_tokens=*/false) == std::vector{id, id};
}

}  // namespace

std::shared_ptr<const FeatureInput> feature_input_of(
    const std::vector<FeatureProjector>& projectors, const tokenizer::Tokenizer& tokenizer) {
  if (projectors.empty()) return nullptr;
  const auto with = [&](tokenizer::TokenId id) {
    return std::make_shared<const FeatureInput>(
        FeatureInput{.projectors = projectors, .token = id, .text = tokenizer.id_to_token(id)});
  };
  if (const auto eos = tokenizer.eos_id(); eos && stands_alone(*eos, tokenizer)) return with(*eos);
  for (tokenizer::TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(id) && tokenizer.is_added(id) && stands_alone(id, tokenizer))
      return with(id);
  throw ConfigError("the tokenizer has no special token that could stand for features in a text",
                    "model.projectors", "use a model with special tokens");
}

int64_t num_feature_rows(const fs::path& path, const FeatureProjector& projector) {
  return FeatureFile(path).num_rows(projector);
}

void read_features(const SequenceMedia& media, const FeatureProjector& projector,
                   std::span<float> to) {
  const fs::path path(media.media.path);
  const FeatureFile file(path);
  const int64_t rows = file.num_rows(projector), width = projector.input_width;
  if (rows != media.rows)
    refuse_file(
        path,
        fmt::format("the features have {}; they had {} when the data were tokenized",
                    counted(rows, "row"), media.rows),
        "keep files of features unchanged during a run: a run that is started again tokenizes them "
        "again");
  SFTRUN_CHECK_EQ(std::ssize(to), media.num_tokens * width);
  const std::vector<float> values = file.values(rows * width);
  if (rows == media.num_tokens)
    std::copy(values.begin(), values.end(), to.begin());
  else
    pool(values, rows, width, media.num_tokens, to);
}

}  // namespace sftrun::data
