#include "amx_tiles.h"

#include <ATen/cpu/Utils.h>
#include <cpuid.h>

#include <cstdlib>

#include "sftrun/kernels/cpu_table.h"

namespace sftrun::kernels {

namespace isa_amx {
extern const TileTable kTable;
}

namespace {

/// CPUID leaf 7: AMX-BF16 and AMX-TILE.
bool processor_has_tiles() {
  constexpr unsigned kBf16 = 1U << 22, kTile = 1U << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kBf16) != 0 && (edx & kTile) != 0 && __builtin_cpu_supports("avx512bf16");
}

const TileTable* choose_tiles() {
  const bool is_lesser = std::getenv("SFTRUN_ISA") != nullptr;
  // init_amx asks the operating system for permission to use the tile registers.
  return !is_lesser && processor_has_tiles() && at::cpu::init_amx() ? &isa_amx::kTable : nullptr;
}

}  // namespace

const TileTable* tile_table() {
  static const TileTable* table = choose_tiles();
  return table;
}

}  // namespace sftrun::kernels
