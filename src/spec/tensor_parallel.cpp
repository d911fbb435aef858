#include "sftrun/spec/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "sftrun/core/error.h"

namespace sftrun::spec {
namespace {

/// Indices that are divided in equal or in nearly equal parts, each of which `copies` ranks have.
struct Segment {
  int64_t size = 0, multiple = 1, copies = 1;
};

/// A dimension that consists of segments, each of them divided over the ranks.
TensorSlice slice_of(int64_t dim, const std::vector<Segment>& segments,
                     const TensorParallel& tensor) {
  TensorSlice slice{.dim = dim, .whole_size = 0, .ranges = {}};
  for (const auto& [size, multiple, copies] : segments) {
    IndexRange range =
        range_of(size, multiple, {.rank = tensor.rank / copies, .size = tensor.size / copies});
    range.begin += slice.whole_size;
    range.copies = copies;
    range.copy = tensor.rank % copies;
    slice.ranges.push_back(range);
    slice.whole_size += size;
  }
  return slice;
}

Segment by_heads(int64_t size, const TensorParallel& tensor) {
  return {size, size / tensor.size};
}

/// Heads of keys, which several others share: of fewer than there are ranks, some ranks have the same.
Segment by_shared_heads(int64_t size, int64_t num_heads, const TensorParallel& tensor) {
  const int64_t copies = num_heads < tensor.size ? tensor.size / num_heads : 1;
  return {size, size / (tensor.size / copies), copies};
}

/// Of q, k and v of a delta net.
std::vector<Segment> delta_channels(const DeltaNetSpec& delta, const TensorParallel& tensor) {
  const Segment keys = by_shared_heads(delta.keys(), delta.num_key_heads, tensor);
  return {keys, keys, by_heads(delta.values(), tensor)};
}

Segment by_channels(int64_t size, const TensorParallel& tensor) {
  return {size, tensor.multiple};
}

Segment by_vocabulary(const ArchSpec& arch, const TensorParallel& tensor) {
  // Rows in multiples of 64 keep the logits of a row aligned.
  constexpr int64_t kRows = 64;
  const int64_t multiple = std::gcd(arch.vocab_size, kRows);
  return {arch.vocab_size, arch.vocab_size / multiple >= tensor.size ? multiple : 1};
}

/// What a divided linear divides, in the order of its outputs or inputs.
std::vector<Segment> segments_of(const ArchSpec& arch, int64_t layer, const LinearSpec& linear,
                                 const TensorParallel& tensor) {
  const auto heads = [&](int64_t size) { return by_heads(size, tensor); };
  const AttentionSizes sizes = attention_sizes(arch, layer);
  const auto keys = [&] { return by_shared_heads(sizes.keys(), sizes.num_kv_heads, tensor); };
  switch (linear.slot) {
    case LinearSlot::kK:
    case LinearSlot::kV:
      return {keys()};
    case LinearSlot::kQ:
    case LinearSlot::kDeltaZ:
    case LinearSlot::kDeltaB:
    case LinearSlot::kDeltaA:
      return {heads(linear.out_features)};
    case LinearSlot::kO:
    case LinearSlot::kDeltaOut:
      return {heads(linear.in_features)};
    case LinearSlot::kQkv:
      return {heads(sizes.queries()), keys(), keys()};
    case LinearSlot::kDeltaQkv:
      return delta_channels(arch.delta_net, tensor);
    case LinearSlot::kGate:
    case LinearSlot::kUp:
    case LinearSlot::kSharedGate:
    case LinearSlot::kSharedUp:
      return {by_channels(linear.out_features, tensor)};
    case LinearSlot::kGateUp:
      return {by_channels(linear.out_features / 2, tensor),
              by_channels(linear.out_features / 2, tensor)};
    case LinearSlot::kDown:
    case LinearSlot::kSharedDown:
      return {by_channels(linear.in_features, tensor)};
    default:
      invariant_failed(__FILE__, __LINE__, "a divided linear");
  }
}

bool has_delta_net(const ArchSpec& arch, int64_t layer) {
  return arch.layers[static_cast<size_t>(layer)].mixer == Mixer::kDeltaNet;
}

class Requirements {
 public:
  Requirements(const TensorParallel& tensor, const std::string& place)
      : tensor_(tensor), place_(place) {}

  void divides(int64_t count, const char* what) const {
    if (count % tensor_.size != 0)
      fail(fmt::format("the model has {} {}, which cannot be divided by {}", count, what,
                       tensor_.size));
  }
  /// Heads of keys, of which ranks may have copies.
  void divides_or_copies(int64_t count, const char* what) const {
    if (count % tensor_.size == 0 || tensor_.size % count == 0) return;
    fail(fmt::format("the model has {} {}, and {} neither divides them nor is a multiple of them",
                     count, what, tensor_.size));
  }
  /// Inner channels, some of which each rank must have.
  void has_channels(int64_t count, const char* what) const {
    if (count == 0) return;
    if (count % tensor_.multiple != 0 || count / tensor_.multiple < tensor_.size)
      fail(fmt::format("{} {} cannot be divided by {}{}", count, what, tensor_.size, blocks()));
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw ConfigError(
        "tensor parallelism: " + why, place_,
        "set parallel.tp to another number, or use, without parallel.tp, parallel.strategy fsdp or "
        "pipeline");
  }

 private:
  std::string blocks() const {
    if (tensor_.multiple == 1) return {};
    return fmt::format(": the base's format stores blocks of {} values", tensor_.multiple);
  }
  const TensorParallel& tensor_;
  const std::string& place_;
};

}  // namespace

IndexRange range_of(int64_t size, int64_t multiple, const TensorParallel& tensor) {
  SFTRUN_CHECK(multiple > 0 && size % multiple == 0);
  const auto begin_of = [&](int64_t rank) {
    return size / multiple * rank / tensor.size * multiple;
  };
  const int64_t begin = begin_of(tensor.rank);
  return {begin, begin_of(tensor.rank + 1) - begin};
}

IndexRange vocabulary_of(const ArchSpec& arch, const TensorParallel& tensor) {
  const Segment rows = by_vocabulary(arch, tensor);
  return range_of(rows.size, rows.multiple, tensor);
}

void require_divisible(const ArchSpec& arch, const TensorParallel& tensor,
                       const std::string& place) {
  const Requirements model(tensor, place);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    const LayerSpec& spec = arch.layers[static_cast<size_t>(layer)];
    if (has_delta_net(arch, layer)) {
      model.divides_or_copies(arch.delta_net.num_key_heads, "key heads in its delta nets");
      model.divides(arch.delta_net.num_value_heads, "value heads in its delta nets");
    } else {
      const AttentionSizes sizes = attention_sizes(arch, layer);
      model.divides(sizes.num_heads, "attention heads");
      model.divides_or_copies(sizes.num_kv_heads, "key-value heads");
    }
    if (!spec.sparse || arch.mixture.beside_dense)
      model.has_channels(intermediate_size(arch, layer), "inner channels of an MLP");
    if (spec.sparse) {
      model.has_channels(arch.mixture.intermediate_size, "inner channels of an expert");
      model.has_channels(arch.mixture.shared_size, "inner channels of the shared expert");
    }
  }
}

ArchSpec part_of(const ArchSpec& arch, const TensorParallel& tensor) {
  ArchSpec part = arch;
  const auto channels = [&](int64_t& size) {
    if (size > 0) size = range_of(size, tensor.multiple, tensor).count;
  };
  const auto shared_heads = [&](int64_t& count) {
    if (count > 0) count = std::max<int64_t>(1, count / tensor.size);
  };
  part.num_heads /= tensor.size;
  shared_heads(part.num_kv_heads);
  shared_heads(part.delta_net.num_key_heads);
  part.delta_net.num_value_heads /= tensor.size;
  // Sizes that no layer uses need not be divisible.
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    LayerSpec& spec = part.layers[static_cast<size_t>(layer)];
    shared_heads(spec.num_kv_heads);
    if (spec.sparse && !arch.mixture.beside_dense) continue;
    spec.intermediate_size = intermediate_size(arch, layer);
    channels(spec.intermediate_size);
  }
  channels(part.mixture.intermediate_size);
  channels(part.mixture.shared_size);
  part.vocab_size = vocabulary_of(arch, tensor).count;
  return part;
}

Division division_of(LinearSlot slot) {
  switch (slot) {
    case LinearSlot::kQ:
    case LinearSlot::kK:
    case LinearSlot::kV:
    case LinearSlot::kQkv:
    case LinearSlot::kGate:
    case LinearSlot::kUp:
    case LinearSlot::kGateUp:
    case LinearSlot::kSharedGate:
    case LinearSlot::kSharedUp:
    case LinearSlot::kDeltaQkv:
    case LinearSlot::kDeltaZ:
    case LinearSlot::kDeltaB:
    case LinearSlot::kDeltaA:
      return Division::kOutputs;
    case LinearSlot::kO:
    case LinearSlot::kDown:
    case LinearSlot::kSharedDown:
    case LinearSlot::kDeltaOut:
      return Division::kInputs;
    case LinearSlot::kRouter:
    case LinearSlot::kSharedRouter:
    case LinearSlot::kPerLayerGate:
    case LinearSlot::kPerLayerProjection:
      return Division::kNone;
  }
  invariant_failed(__FILE__, __LINE__, "every LinearSlot has a division");
}

std::map<std::string, TensorSlice> slices_of(const ArchSpec& arch, const TensorParallel& tensor) {
  std::map<std::string, TensorSlice> slices;
  if (tensor.size == 1) return slices;
  const std::vector<Segment> vocabulary = {by_vocabulary(arch, tensor)};
  slices[arch.prefix + "embed_tokens.weight"] = slice_of(0, vocabulary, tensor);
  if (!arch.tie_word_embeddings) slices["lm_head.weight"] = slice_of(0, vocabulary, tensor);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    const auto name = [&](const std::string& module) { return name_in_layer(arch, layer, module); };
    for (const LinearSpec& linear : layer_linears(arch, layer)) {
      const Division division = division_of(linear.slot);
      if (division == Division::kNone) continue;
      const auto segments = segments_of(arch, layer, linear, tensor);
      const bool by_outputs = division == Division::kOutputs;
      slices[name(linear.module) + ".weight"] = slice_of(by_outputs ? 0 : 1, segments, tensor);
      if (linear.bias && by_outputs)
        slices[name(linear.module) + ".bias"] = slice_of(0, segments, tensor);
    }
    for (const ExpertSpec& experts : layer_experts(arch, layer)) {
      const bool is_gate_up = experts.slot == ExpertSlot::kGateUp;
      const Segment inner = by_channels(arch.mixture.intermediate_size, tensor);
      const auto segments =
          is_gate_up ? std::vector<Segment>{inner, inner} : std::vector<Segment>{inner};
      slices[name(experts.module)] = slice_of(is_gate_up ? 1 : 2, segments, tensor);
      if (experts.bias && is_gate_up)
        slices[name(experts.module) + "_bias"] = slice_of(1, segments, tensor);
    }
    for (const WeightSpec& weight : layer_weights(arch, layer)) {
      const bool is_conv = weight.slot == WeightSlot::kDeltaConv;
      if (is_conv) {
        slices[name(weight.name)] = slice_of(0, delta_channels(arch.delta_net, tensor), tensor);
      } else if (weight.slot == WeightSlot::kSinks || weight.slot == WeightSlot::kDeltaALog ||
                 weight.slot == WeightSlot::kDeltaDtBias) {
        slices[name(weight.name)] = slice_of(0, {by_heads(weight.shape[0], tensor)}, tensor);
      }
    }
  }
  return slices;
}

}  // namespace sftrun::spec
