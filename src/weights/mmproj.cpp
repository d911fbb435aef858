#include "sftrun/weights/mmproj.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "gguf_form.h"
#include "gguf_mix.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/vision_tensors.h"

namespace sftrun::weights {
namespace {

using spec::MmprojForm;
using spec::MmprojTensor;

GgmlType float_of(const std::string& dtype) {
  if (dtype == "f32") return GgmlType::kF32;
  return dtype == "bf16" ? GgmlType::kBF16 : GgmlType::kF16;
}

GgmlType stored_as(spec::MmprojType type, GgmlType of_file) {
  switch (type) {
    case spec::MmprojType::kF32:
      return GgmlType::kF32;
    case spec::MmprojType::kF16:
      return GgmlType::kF16;
    case spec::MmprojType::kKernel:
      return of_file == GgmlType::kF16 ? GgmlType::kF16 : GgmlType::kF32;
    case spec::MmprojType::kFiles:
      break;
  }
  return of_file;
}

int64_t count_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> following(int64_t first, int64_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

/// The kernel's planes of one frame; in memory each channel has a plane for each frame.
void take_frame(const MmprojTensor& tensor, int64_t frames, GgufPiece& piece) {
  piece.row_size = tensor.shape[2] * tensor.shape[3];
  for (int64_t plane = 0; plane < tensor.shape[0] * tensor.shape[1]; ++plane)
    piece.rows.push_back(plane * frames + tensor.part);
}

/// (channel, row, column) from (row, column, channel).
void order_planes(const MmprojTensor& tensor, GgufPiece& piece) {
  const int64_t channels = tensor.shape[1], area = tensor.shape[2] * tensor.shape[3];
  piece.row_size = channels * area;
  for (int64_t channel = 0; channel < channels; ++channel)
    for (int64_t pixel = 0; pixel < area; ++pixel)
      piece.columns.push_back(pixel * channels + channel);
}

/// The two halves of each head's rows in turn.
void interleave_heads(int64_t head_dim, GgufPiece& piece) {
  const int64_t half = head_dim / 2;
  for (int64_t row = 0; row < piece.num_rows(); ++row) {
    const int64_t within = row % head_dim;
    piece.rows.push_back(row - within + within % 2 * half + within / 2);
  }
}

/// [in, out] from [out, in]: each value is a row.
void transpose(const MmprojTensor& tensor, GgufPiece& piece) {
  const int64_t in = tensor.shape[0], out = tensor.shape[1];
  piece.row_size = 1;
  for (int64_t i = 0; i < in; ++i)
    for (int64_t o = 0; o < out; ++o) piece.rows.push_back(o * in + i);
}

GgufPiece piece_of_image_side(const spec::VisionSpec& vision, const MmprojTensor& tensor) {
  GgufPiece piece{.name = tensor.name,
                  .shape = tensor.shape,
                  .row_size = tensor.shape.size() == 1 ? 1 : tensor.shape.back(),
                  .adds_one = tensor.adds_one};
  switch (tensor.form) {
    case MmprojForm::kSame:
      break;
    case MmprojForm::kFrame:
      take_frame(tensor, vision.patches.frames, piece);
      break;
    case MmprojForm::kThird:
      piece.rows = following(tensor.part * piece.num_rows(), piece.num_rows());
      break;
    case MmprojForm::kInterleaved:
      interleave_heads(vision.head_dim, piece);
      break;
    case MmprojForm::kPlanes:
      order_planes(tensor, piece);
      break;
    case MmprojForm::kTransposed:
      transpose(tensor, piece);
      break;
    case MmprojForm::kRow:
      piece.row_size = count_of(tensor.shape);
      piece.rows = {tensor.part};
      break;
  }
  return piece;
}

/// `vision_config.image_size` of a tower that takes images of any size.
int64_t image_size_in(const Checkpoint& base) {
  const nlohmann::ordered_json keys = base.configuration();
  const auto found = keys.find("vision_config.image_size");
  return found != keys.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

/// The places of the model's tensors in `Checkpoint::tensors`, without those whose shapes are not the configuration's.
std::map<std::string, size_t> places_of(const Checkpoint& base) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const spec::TensorSpec& spec :
       spec::vision_tensor_specs(*base.arch().vision, base.arch().hidden_size))
    shapes[spec.name] = spec.shape;
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < base.tensors().size(); ++i) {
    const TensorInfo& info = base.tensors()[i];
    const auto shape = shapes.find(info.name);
    if (shape == shapes.end() || shape->second == info.shape) places[info.name] = i;
  }
  return places;
}

MmprojPlan refused(std::string why) {
  MmprojPlan plan;
  plan.refused = std::move(why);
  return plan;
}

void describe_file(const spec::Mmproj& file, const MmprojOptions& options, GgufMetadata& metadata) {
  constexpr uint32_t kQuantizationOfBlocks = 2;
  metadata.set_string("general.architecture", "clip");
  metadata.set_string("general.type", "mmproj");
  metadata.set_string("general.name", options.name);
  const GgufMix* mix = find_mix(options.dtype);
  SFTRUN_CHECK(mix != nullptr);
  metadata.set_u32("general.file_type", mix->file_type);
  for (const auto& [key, value] : file.metadata.items()) metadata.set_json(key, value);
  metadata.set_u32("general.quantization_version", kQuantizationOfBlocks);
}

}  // namespace

std::string mmproj_dtype(const Checkpoint& base, const std::string& mix) {
  if (mix == "f32" || mix == "bf16") return mix;
  if (mix != "auto") return "f16";
  const std::string& format = base.tensors().at(0).format;
  if (format == "F32") return "f32";
  return format == "BF16" ? "bf16" : "f16";
}

MmprojPlan plan_mmproj(const Checkpoint& base, const MmprojOptions& options) {
  MmprojPlan plan;
  const spec::ArchSpec& arch = base.arch();
  spec::MmprojImages images = options.images;
  if (images.image_size == 0) images.image_size = image_size_in(base);
  const spec::Mmproj file = spec::describe_mmproj(arch, images, options.image_break);
  if (!file.refused.empty()) return refused("llama.cpp does not read " + file.refused);
  describe_file(file, options, plan.metadata);
  const std::map<std::string, size_t> places = places_of(base);
  for (const MmprojTensor& tensor : file.tensors) {
    const auto place = places.find(tensor.source);
    if (place == places.end())
      return refused(
          fmt::format("the model's files have no `{}` of the model's shape", tensor.source));
    plan.pieces.push_back(piece_of_image_side(*arch.vision, tensor));
    plan.pieces.back().source = place->second;
    plan.types.push_back(info_of(stored_as(tensor.type, float_of(options.dtype))));
  }
  return plan;
}

}  // namespace sftrun::weights
