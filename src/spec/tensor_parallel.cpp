#include "sftrun/spec/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "blocks/block.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::spec {
namespace {

/// Indices that are divided in equal or in nearly equal parts, each of which `copies` ranks have.
struct Parts {
  int64_t multiple = 1, copies = 1;
};

Parts parts_of(const Segment& segment, const TensorParallel& tensor) {
  switch (segment.by) {
    case Segment::By::kHeads:
      return {segment.size / tensor.size};
    case Segment::By::kSharedHeads: {
      const int64_t copies =
          segment.num_heads < tensor.size ? tensor.size / segment.num_heads : int64_t{1};
      return {segment.size / (tensor.size / copies), copies};
    }
    case Segment::By::kChannels:
      return {tensor.multiple};
  }
  invariant_failed(__FILE__, __LINE__, "every segment has parts");
}

/// A dimension that consists of segments, each of them divided over the ranks.
TensorSlice slice_of(int64_t dim, const std::vector<Segment>& segments,
                     const TensorParallel& tensor) {
  TensorSlice slice{.dim = dim, .whole_size = 0, .ranges = {}};
  for (const Segment& segment : segments) {
    const auto [multiple, copies] = parts_of(segment, tensor);
    IndexRange range = range_of(segment.size, multiple,
                                {.rank = tensor.rank / copies, .size = tensor.size / copies});
    range.begin += slice.whole_size;
    range.copies = copies;
    range.copy = tensor.rank % copies;
    slice.ranges.push_back(range);
    slice.whole_size += segment.size;
  }
  return slice;
}

}  // namespace

void Requirements::divides(int64_t count, const char* what) const {
  if (count % tensor_.size == 0) return;
  fail(
      fmt::format("the model has {} {}, which cannot be divided by {}", count, what, tensor_.size));
}

void Requirements::divides_or_copies(int64_t count, const char* what) const {
  if (count % tensor_.size == 0 || tensor_.size % count == 0) return;
  fail(fmt::format("the model has {} {}, and {} neither divides them nor is a multiple of them",
                   count, what, tensor_.size));
}

void Requirements::has_channels(int64_t count, const char* what) const {
  if (count == 0) return;
  if (count % tensor_.multiple != 0 || count / tensor_.multiple < tensor_.size)
    fail(fmt::format("{} {} cannot be divided by {}{}", count, what, tensor_.size, blocks()));
}

void Requirements::fail(const std::string& why) const {
  throw ConfigError("tensor parallelism: " + why, place_);
}

std::string Requirements::blocks() const {
  if (tensor_.multiple == 1) return {};
  return fmt::format(": the base's format stores blocks of {} values", tensor_.multiple);
}

void RankSizes::heads(int64_t& count) const {
  count /= tensor_.size;
}

void RankSizes::shared_heads(int64_t& count) const {
  if (count > 0) count = std::max<int64_t>(1, count / tensor_.size);
}

void RankSizes::channels(int64_t& size) const {
  if (size > 0) size = range_of(size, tensor_.multiple, tensor_).count;
}

IndexRange range_of(int64_t size, int64_t multiple, const TensorParallel& tensor) {
  SFTRUN_CHECK(multiple > 0 && size % multiple == 0);
  const auto begin_of = [&](int64_t rank) {
    return size / multiple * rank / tensor.size * multiple;
  };
  const int64_t begin = begin_of(tensor.rank);
  return {begin, begin_of(tensor.rank + 1) - begin};
}

IndexRange vocabulary_of(const ArchSpec& arch, const TensorParallel& tensor) {
  // Rows in multiples of 64 keep the logits of a row aligned.
  constexpr int64_t kRows = 64;
  const int64_t multiple = std::gcd(arch.vocab_size, kRows);
  return range_of(arch.vocab_size, arch.vocab_size / multiple >= tensor.size ? multiple : 1,
                  tensor);
}

namespace {

void ask_blocks(const ArchSpec& arch, const TensorParallel& tensor, const std::string& place) {
  const Requirements model(tensor, place);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    for (const Block* block : all_blocks())
      if (block->require_divisible != nullptr && block->is_in(arch, layer))
        block->require_divisible(arch, layer, model);
}

bool is_divisible(const ArchSpec& arch, const TensorParallel& tensor) {
  try {
    ask_blocks(arch, tensor, {});
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

/// Names the smaller sizes that divide the model: the largest of them, as they divide it most.
std::string fix_of_size(const ArchSpec& arch, TensorParallel tensor) {
  constexpr size_t kShown = 3;
  std::vector<std::string> sizes;
  while (--tensor.size > 1 && sizes.size() < kShown)
    if (is_divisible(arch, tensor)) sizes.insert(sizes.begin(), std::to_string(tensor.size));
  const std::string instead = "use, without parallel.tp, parallel.strategy fsdp or pipeline";
  return sizes.empty()
             ? instead
             : fmt::format("set parallel.tp to {}, or {}", joined(sizes, " or "), instead);
}

}  // namespace

void require_divisible(const ArchSpec& arch, const TensorParallel& tensor,
                       const std::string& place) {
  try {
    ask_blocks(arch, tensor, place);
  } catch (const ConfigError& error) {
    throw ConfigError(error.message(), error.where(), fix_of_size(arch, tensor));
  }
}

ArchSpec part_of(const ArchSpec& arch, const TensorParallel& tensor) {
  ArchSpec part = arch;
  const RankSizes sizes(tensor);
  for (const Block* block : all_blocks())
    if (block->take_part != nullptr) block->take_part(part, sizes);
  part.vocab_size = vocabulary_of(arch, tensor).count;
  return part;
}

namespace {

/// Slices of a layer's tensors, by name in the layer.
std::map<std::string, TensorSlice> layer_slices(const BlockTensors& block,
                                                const TensorParallel& tensor) {
  std::map<std::string, TensorSlice> slices;
  // The dimension of the outputs of a matrix is before that of its inputs.
  const auto add = [&](const auto& matrix, const std::string& weight, const std::string& bias,
                       int64_t outputs) {
    if (matrix.division == Division::kNone) return;
    const bool by_outputs = matrix.division == Division::kOutputs;
    slices[weight] = slice_of(by_outputs ? outputs : outputs + 1, matrix.segments, tensor);
    if (matrix.bias && by_outputs) slices[bias] = slice_of(outputs, matrix.segments, tensor);
  };
  for (const LinearSpec& linear : block.linears)
    add(linear, linear.module + ".weight", linear.module + ".bias", 0);
  for (const ExpertSpec& experts : block.experts)
    add(experts, experts.module, experts.module + "_bias", 1);
  for (const WeightSpec& weight : block.weights)
    if (!weight.segments.empty()) slices[weight.name] = slice_of(0, weight.segments, tensor);
  return slices;
}

}  // namespace

std::map<std::string, TensorSlice> slices_of(const ArchSpec& arch, const TensorParallel& tensor) {
  std::map<std::string, TensorSlice> slices;
  if (tensor.size == 1) return slices;
  const TensorSlice vocabulary{
      .dim = 0, .whole_size = arch.vocab_size, .ranges = {vocabulary_of(arch, tensor)}};
  slices[arch.prefix + "embed_tokens.weight"] = vocabulary;
  if (!arch.tie_word_embeddings && !arch.score) slices["lm_head.weight"] = vocabulary;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    for (const BlockTensors& block : layer_blocks(arch, layer))
      for (auto& [name, slice] : layer_slices(block, tensor))
        slices[name_in_layer(arch, layer, name)] = slice;
  return slices;
}

}  // namespace sftrun::spec
