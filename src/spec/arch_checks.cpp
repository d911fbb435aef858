#include "arch_checks.h"

#include <array>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::spec {
namespace {

constexpr std::array<std::pair<RopeType, const char*>, 5> kRopeTypes = {{
    {RopeType::kDefault, "default"},
    {RopeType::kLinear, "linear"},
    {RopeType::kDynamic, "dynamic"},
    {RopeType::kYarn, "yarn"},
    {RopeType::kLlama3, "llama3"},
}};

void require(bool holds, const std::string& message, const std::string& where) {
  if (!holds) throw DataError(message, where);
}

}  // namespace

void check_arch(const ArchSpec& arch, const std::string& where) {
  require(arch.num_heads % arch.num_kv_heads == 0,
          fmt::format("{} attention heads cannot share {} key-value heads: not a multiple",
                      arch.num_heads, arch.num_kv_heads),
          where);
  require(arch.head_dim % 2 == 0,
          fmt::format("rotary position embeddings need an even head_dim; it is {}", arch.head_dim),
          where);
  require(arch.num_heads * arch.head_dim <= kMostSize,
          fmt::format("{} heads of size {} are too large", arch.num_heads, arch.head_dim), where);
  require(arch.rope.type != RopeType::kDynamic || arch.head_dim > 2,
          "dynamic RoPE scaling needs a head_dim of at least 4", where);
  require(
      arch.rope.type != RopeType::kLlama3 || arch.rope.high_freq_factor > arch.rope.low_freq_factor,
      fmt::format("llama3 RoPE scaling needs high_freq_factor {} above low_freq_factor {}",
                  arch.rope.high_freq_factor, arch.rope.low_freq_factor),
      where);
  require(arch.rope.theta > 1.0,
          fmt::format("the RoPE base must be above 1; it is {}", arch.rope.theta), where);
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
    known_names += (known_names.empty() ? "" : ", ") + std::string(known);
  }
  throw DataError(fmt::format("RoPE scaling \"{}\" is not supported", name), where,
                  "supported are " + known_names);
}

}  // namespace sftrun::spec
