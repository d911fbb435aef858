#include "hf_mxfp4.h"

#include "sftrun/core/error.h"

namespace sftrun::weights {
namespace {

constexpr const char* kBlocks = "_blocks";
constexpr const char* kScales = "_scales";

}  // namespace

bool is_in_mxfp4(const spec::TensorSpec& spec, const HfFiles& files) {
  return spec.role == spec::TensorRole::kExperts &&
         (files.contains(spec.name + kBlocks) || files.contains(spec.name + kScales));
}

Mxfp4Blocks mxfp4_blocks(const std::string& name, const HfFiles& files) {
  return {files.at(name + kBlocks).entry->bytes, files.at(name + kScales).entry->bytes};
}

std::vector<spec::TensorSpec> mxfp4_tensors(const spec::TensorSpec& spec,
                                            const std::string& where) {
  std::vector<int64_t> shape = mxfp4_layout(spec.layout).shape;
  if (shape.back() % kMxfp4Block != 0) {
    throw DataError(fmt::format("tensor `{}{}` cannot be MXFP4: its rows of {} values are not a "
                                "multiple of the block size {}",
                                spec.name, kBlocks, shape.back(), kMxfp4Block),
                    where, "configuration and weights are of different models");
  }
  shape.back() /= kMxfp4Block;
  const spec::TensorSpec scales{.name = spec.name + kScales, .shape = shape, .role = spec.role};
  shape.push_back(kMxfp4Block / 2);
  return {scales, {.name = spec.name + kBlocks, .shape = shape, .role = spec.role}};
}

TensorInfo mxfp4_info(const spec::TensorSpec& spec, const HfFiles& files) {
  uint64_t stored_bytes = 0;
  for (const char* kind : {kBlocks, kScales}) {
    const HfFiles::Located& located = files.at(spec.name + kind);
    if (located.entry->dtype != "U8") {
      throw DataError(fmt::format("tensor `{}{}` is stored as {}, expected U8 (MXFP4)", spec.name,
                                  kind, located.entry->dtype),
                      located.file->string(), "download or copy the model again");
    }
    stored_bytes += located.entry->bytes.size();
  }
  return {.name = spec.name,
          .shape = spec.shape,
          .format = kMxfp4,
          .stored_bytes = stored_bytes,
          .stored_name = spec.name,
          .layout = spec.layout};
}

}  // namespace sftrun::weights
