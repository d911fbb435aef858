#include "arch_checks.h"

#include <array>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"

namespace sftrun::spec {
namespace {

constexpr std::array<std::pair<RopeType, const char*>, 7> kRopeTypes = {{
    {RopeType::kDefault, "default"},
    {RopeType::kLinear, "linear"},
    {RopeType::kDynamic, "dynamic"},
    {RopeType::kYarn, "yarn"},
    {RopeType::kLlama3, "llama3"},
    {RopeType::kLongRope, "longrope"},
    {RopeType::kProportional, "proportional"},
}};

void require(bool holds, const std::string& message, const std::string& where) {
  if (!holds) throw DataError(message, where);
}

void check_rope(const RopeSpec& rope, const std::string& where) {
  require(
      rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0,
      fmt::format("rotary position embeddings need an even head_dim; it is {}", rope.rotary_dim),
      where);
  require(rope.type != RopeType::kDynamic || rope.rotary_dim > 2,
          "dynamic RoPE scaling needs a head_dim of at least 4", where);
  require(
      rope.type != RopeType::kLlama3 || rope.high_freq_factor > rope.low_freq_factor,
      fmt::format(
          "llama3 RoPE scaling needs high_freq_factor above low_freq_factor; they are {} and {}",
          rope.high_freq_factor, rope.low_freq_factor),
      where);
  require(rope.theta > 1.0, fmt::format("the RoPE base must be above 1; it is {}", rope.theta),
          where);
}

void check_heads(const AttentionSizes& sizes, const std::string& where) {
  require(sizes.num_heads % sizes.num_kv_heads == 0,
          fmt::format("{} attention heads are not a multiple of {} key-value heads",
                      sizes.num_heads, sizes.num_kv_heads),
          where);
  require(sizes.queries() <= kMaxSize,
          fmt::format("{} heads of size {} are too large", sizes.num_heads, sizes.head_dim), where);
}

}  // namespace

void check_arch(const ArchSpec& arch, const std::string& where) {
  require(static_cast<int64_t>(arch.layers.size()) == arch.num_layers,
          fmt::format("{} described, expected {}", counted(arch.layers.size(), "layer"),
                      arch.num_layers),
          where);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    check_heads(attention_sizes(arch, layer), where);
  for (const RopeSpec& rope : arch.ropes) check_rope(rope, where);
}

std::string name_of(RopeType type) {
  for (const auto& [known, name] : kRopeTypes) {
    if (known == type) return name;
  }
  invariant_failed(__FILE__, __LINE__, "every RopeType has a name");
}

RopeType parse_rope_type(const std::string& name, const std::string& where) {
  std::string known_names;
  for (const auto& [type, known] : kRopeTypes) {
    if (name == known) return type;
    if (name == "su" && type == RopeType::kLongRope) return type;  // its former name
    known_names += (known_names.empty() ? "" : ", ") + std::string(known);
  }
  throw DataError(fmt::format("RoPE scaling \"{}\" is not supported", name), where,
                  "supported: " + known_names);
}

}  // namespace sftrun::spec
