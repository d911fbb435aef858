#include "tensor_check.h"

#include <algorithm>
#include <map>
#include <set>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/feature_projectors.h"
#include "shape_math.h"

namespace sftrun::weights {

void refuse_shape(const FoundTensor& tensor, const std::vector<int64_t>& expected) {
  throw DataError(fmt::format("tensor `{}` has the shape {}; the configuration implies {}",
                              tensor.name, shape_text(tensor.shape), shape_text(expected)),
                  tensor.where, "configuration and weights are of different models");
}

namespace {

/// "`a`, `b`, `c` and 4 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += fmt::format("{}`{}`", i == 0 ? "" : ", ", names[i]);
  }
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

void check_shapes(const std::map<std::string, const spec::TensorSpec*>& wanted,
                  const std::vector<FoundTensor>& found) {
  for (const FoundTensor& tensor : found) {
    const auto spec = wanted.find(tensor.name);
    if (spec == wanted.end() || spec->second->shape == tensor.shape) continue;
    refuse_shape(tensor, spec->second->shape);
  }
}

/// Unknown tensors may be the scales of a quantised matrix that is missing.
void require_owners(const std::vector<std::string>& missing,
                    const std::vector<std::string>& unknown, const std::string& where) {
  for (const std::string& name : missing) {
    std::vector<std::string> parts;
    for (const std::string& part : unknown)
      if (part.starts_with(name + ".") || part == name + "_scale") parts.push_back(part);
    if (parts.empty()) continue;
    throw DataError(fmt::format("missing tensor `{}`; found only {}", name, some_of(parts)), where,
                    "the checkpoint is incomplete: download or copy it again");
  }
}

/// "model.layers.20." for a tensor of layer 20; empty outside the layers.
std::string layer_of(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = name.find(kLayers);
  const size_t end = at == std::string::npos ? at : name.find('.', at + kLayers.size());
  return end == std::string::npos ? "" : name.substr(0, end + 1);
}

/// Reports layers that the configuration does not have, if all unknown tensors belong to such
/// layers.
void require_layers(const std::vector<spec::TensorSpec>& expected,
                    const std::vector<std::string>& missing,
                    const std::vector<std::string>& unknown, const std::string& where) {
  if (!missing.empty() || unknown.empty()) return;
  std::set<std::string> known, more;
  for (const spec::TensorSpec& spec : expected) known.insert(layer_of(spec.name));
  for (const std::string& name : unknown) more.insert(layer_of(name));
  known.erase("");
  for (const std::string& layer : more)
    if (layer.empty() || known.contains(layer)) return;
  throw DataError(fmt::format("the file has {}, the configuration says {}",
                              counted(known.size() + more.size(), "layer"), known.size()),
                  where, "configuration and weights are of different models");
}

/// Without projectors.json a model has no projectors, whatever its files hold.
void require_sizes_of_projectors(const std::vector<std::string>& unknown,
                                 const std::string& where) {
  if (std::none_of(unknown.begin(), unknown.end(), spec::is_projector_name)) return;
  throw DataError(fmt::format("{} {} of projectors of features that no projectors.json describes",
                              plural("tensor", unknown.size()), some_of(unknown)),
                  where, "copy projectors.json, too: it is beside the weights that the run wrote");
}

}  // namespace

void check_tensors(const std::vector<spec::TensorSpec>& expected,
                   const std::vector<FoundTensor>& found, const std::string& where) {
  std::map<std::string, const spec::TensorSpec*> wanted;
  for (const spec::TensorSpec& spec : expected) wanted[spec.name] = &spec;
  std::set<std::string> present;
  std::vector<std::string> missing, unknown;
  std::string unknown_where;
  for (const FoundTensor& tensor : found) {
    present.insert(tensor.name);
    if (wanted.contains(tensor.name)) continue;
    if (unknown.empty()) unknown_where = tensor.where;
    unknown.push_back(tensor.name);
  }
  for (const spec::TensorSpec& spec : expected) {
    if (!present.contains(spec.name)) missing.push_back(spec.name);
  }
  require_sizes_of_projectors(unknown, unknown_where);
  require_owners(missing, unknown, unknown_where);
  require_layers(expected, missing, unknown, unknown_where);
  if (!unknown.empty()) {
    const std::vector<std::string> candidates = missing.empty() ? [&] {
      std::vector<std::string> names;
      for (const spec::TensorSpec& spec : expected) names.push_back(spec.name);
      return names;
    }() : missing;
    const std::string near = nearest(unknown[0], candidates);
    throw DataError(
        fmt::format("unknown {} {}", plural("tensor", unknown.size()), some_of(unknown)),
        unknown_where,
        near.empty() ? "the checkpoint has another architecture than its configuration"
                     : fmt::format("the nearest tensor of this architecture is `{}`", near));
  }
  if (!missing.empty()) {
    const bool only_head = missing.size() == 1 && missing[0] == "lm_head.weight";
    throw DataError(
        fmt::format("missing {} {}", plural("tensor", missing.size()), some_of(missing)), where,
        only_head ? "if the model ties its head to the embedding, config.json must say "
                    "\"tie_word_embeddings\": true"
                  : "the checkpoint is incomplete: download or copy it again");
  }
  check_shapes(wanted, found);
}

}  // namespace sftrun::weights
