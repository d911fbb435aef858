#include "gguf_tensors.h"

#include <set>

#include "gguf_names.h"
#include "sftrun/core/error.h"
#include "sftrun/spec/gguf_description.h"
#include "tensor_check.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;

/// Number of layers, including those that predict further tokens. @pre read_arch accepted the
/// metadata
int64_t num_blocks(const GgufFile& file) {
  const json& meta = file.metadata();
  return meta.at(meta.at("general.architecture").get<std::string>() + ".block_count")
      .get<int64_t>();
}

}  // namespace

GgufTensors::GgufTensors(const GgufFile& file, const spec::ArchSpec& arch)
    : file_(file), arch_(arch), names_(gguf_names(arch)), num_blocks_(num_blocks(file)) {}

std::vector<const GgufTensor*> GgufTensors::sources_of(const spec::TensorSpec& spec) {
  std::vector<const GgufTensor*> sources;
  for (const std::string& name : names_of(spec)) sources.push_back(source_of(spec, name));
  return sources;
}

std::vector<std::string> GgufTensors::names_of(const spec::TensorSpec& spec) const {
  if (!belongs_to_experts(spec)) return {names_.at(spec.name)};
  if (are_apart(spec)) return gguf_single_expert_names(spec);
  const std::string fused = gguf_fused_expert_name(spec);
  return file_.find(fused) ? std::vector{fused} : gguf_expert_names(spec);
}

/// The fused tensor of q, k and v that contains this one; nullptr: stored separately.
const GgufTensor* GgufTensors::fused_with(const spec::TensorSpec& spec) const {
  return file_.find(names_of(spec)[0]) ? nullptr : file_.find(gguf_fused_name(names_of(spec)[0]));
}

const GgufTensor* GgufTensors::source_of(const spec::TensorSpec& spec, const std::string& name) {
  const GgufTensor* fused = fused_with(spec);
  if (!fused) return require_readable(name);
  const QkvRows rows = qkv_rows(arch_, spec.layer, name);
  GgufTensor part = *require_readable(fused->name);
  if (fused->numel() / rows.of_all % part.type.block_size != 0) {
    throw DataError(fmt::format("tensor `{}` is stored as {}, whose blocks span its rows",
                                part.name, part.type.name),
                    file_.where(), "store biases as F32, as llama.cpp does");
  }
  const size_t row_bytes = fused->bytes.size() / static_cast<size_t>(rows.of_all);
  part.shape = spec.shape;
  part.bytes = fused->bytes.subspan(static_cast<size_t>(rows.first) * row_bytes,
                                    static_cast<size_t>(spec.shape[0]) * row_bytes);
  return &parts_of_fused_.emplace_back(std::move(part));
}

/// Whether the file stores each expert's matrices as separate tensors.
bool GgufTensors::are_apart(const spec::TensorSpec& spec) const {
  return spec.role == spec::TensorRole::kExperts && !file_.find(gguf_expert_names(spec)[0]) &&
         file_.find(gguf_single_expert_names(spec)[0]);
}

/// Shape of one of the `count` file tensors that form an experts' tensor: one matrix of all
/// experts, or of one expert.
std::vector<int64_t> GgufTensors::shape_of_source(const spec::TensorSpec& spec,
                                                  size_t count) const {
  std::vector<int64_t> shape = spec.shape;
  const bool is_apart = are_apart(spec);
  const auto matrices = static_cast<int64_t>(count) / (is_apart ? spec.shape[0] : 1);
  if (matrices > 1) shape[1] /= matrices;
  if (is_apart) shape.erase(shape.begin());
  return shape;
}

const GgufTensor* GgufTensors::require_readable(const std::string& name) const {
  const GgufTensor* tensor = file_.find(name);
  if (tensor->type.readable) return tensor;
  throw DataError(
      fmt::format("tensor `{}` is stored as {}, which is not supported", name, tensor->type.name),
      file_.where(),
      "supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K and MXFP4");
}

/// Whether a tensor belongs to a layer that predicts further tokens.
bool GgufTensors::predicts_further(const std::string& name) const {
  const int64_t layer = gguf_layer(name);
  return layer >= arch_.num_layers && layer < num_blocks_;
}

void GgufTensors::check(const std::vector<spec::TensorSpec>& wanted) const {
  std::vector<spec::TensorSpec> specs;
  for (const spec::TensorSpec& spec : wanted) {
    const std::vector<std::string> names = names_of(spec);
    for (const std::string& name : names) {
      specs.push_back(spec);
      specs.back().name = name;
      specs.back().shape = shape_of_source(spec, names.size());
      const GgufTensor* fused = fused_with(spec);
      if (!fused) continue;
      specs.back().name = fused->name;
      specs.back().shape[0] = qkv_rows(arch_, spec.layer, name).of_all;
    }
  }
  const std::set<std::string> unused = gguf_unused(arch_);
  std::vector<FoundTensor> found;
  for (const GgufTensor& tensor : file_.tensors()) {
    const bool aside = tensor.name == spec::kGgufRopeDivisors ||
                       tensor.name == spec::kGgufShortFactors ||
                       tensor.name == spec::kGgufLongFactors;
    if (!aside && !unused.contains(tensor.name) && !predicts_further(tensor.name))
      found.push_back({tensor.name, tensor.shape, file_.where()});
  }
  check_tensors(specs, found, file_.where());
}

}  // namespace sftrun::weights
