#include "image_side.h"

#include "computed_piece.h"
#include "merge_writers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/open_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/data/image_input.h"
#include "sftrun/images/processor.h"
#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::exporting {
namespace fs = std::filesystem;
namespace {

spec::MmprojImages described_images(const images::ImageProcessor& processor) {
  return {.mean = processor.image_mean,
          .std = processor.image_std,
          .longest_edge = processor.size.longest_edge,
          .min_tiles = processor.min_patches,
          .max_tiles = processor.max_patches};
}

/// With the limits of the run. Files that cannot be read are no reason to write a model of another kind than they describe.
images::ImageProcessor processor_of(const MergeOptions& options) {
  try {
    return images::with_caps(images::read_processor(options.base), image_caps_of(options));
  } catch (const DataError& error) {
    throw DataError(
        error.message(), error.where(),
        fmt::format("{}; without the files of the image processor the text model alone "
                    "is written",
                    error.fix().empty() ? "copy them from the model's repository" : error.fix()));
  }
}

std::optional<int64_t> image_break_of(const weights::Checkpoint& base) {
  if (!spec::has_image_break(base.arch())) return std::nullopt;
  return base.tokenizer().token_to_id(spec::kImageBreak);
}

}  // namespace

std::string ImageSide::name_in(const std::string& model) const {
  const std::string type = dtype == "f32" ? "F32" : dtype == "bf16" ? "BF16" : "F16";
  return fmt::format("mmproj-{}-{}.gguf", model, type);
}

fs::path image_file_beside(const MergeOptions& options) {
  return options.output.parent_path() / ("mmproj-" + options.output.filename().string());
}

ImageSide plan_image_side(const MergeOptions& options, const weights::Checkpoint& base) {
  ImageSide side{.dtype = weights::mmproj_dtype(base, options.dtype)};
  if (!data::has_image_processor(options.base)) {
    side.plan.refused = "the model's directory has no image processor";
    return side;
  }
  side.plan = weights::plan_mmproj(base, {.dtype = side.dtype,
                                          .name = name_of_output(options),
                                          .images = described_images(processor_of(options)),
                                          .image_break = image_break_of(base)});
  if (!options.writes_file() || !side.plan.refused.empty()) return side;
  const fs::path file = image_file_beside(options);
  require_place_for_file(file);
  if (leads_to_file(file) && !options.overwrite) {
    throw ConfigError("the file of the image side exists", file.string(),
                      "remove it, name another --output, or replace both with --overwrite");
  }
  return side;
}

void write_image_side(const ImageSide& images, const weights::Checkpoint& base,
                      MergedWeights& merged, AtomicFile& file) {
  std::vector<weights::GgufTensorToWrite> tensors;
  for (size_t i = 0; i < images.plan.pieces.size(); ++i) {
    const weights::GgufPiece& piece = images.plan.pieces[i];
    const weights::TensorInfo& info = base.tensors().at(piece.source);
    const bool is_bound = info.shape.empty();
    tensors.push_back(computed_piece(
        piece, images.plan.types[i], info.name, [&merged, &info] { return merged.of(info); },
        is_bound));
  }
  weights::write_gguf(file, images.plan.metadata, tensors);
}

}  // namespace sftrun::exporting
