#include "sftrun/kernels/cpu_table.h"

#include <cstdlib>
#include <string_view>

namespace sftrun::kernels {

namespace isa_generic {
extern const CpuKernels kTable;
}
namespace isa_avx2 {
extern const CpuKernels kTable;
}
namespace isa_avx512 {
extern const CpuKernels kTable;
}

namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const CpuKernels& choose_kernels() {
  if (const char* wanted = std::getenv("SFTRUN_ISA")) {
    if (const CpuKernels* table = cpu_kernels_by_name(wanted)) return *table;
  }
  if (has_avx512()) return isa_avx512::kTable;
  if (has_avx2()) return isa_avx2::kTable;
  return isa_generic::kTable;
}

}  // namespace

const CpuKernels* cpu_kernels_by_name(const char* isa) {
  const std::string_view name = isa;
  if (name == "generic") return &isa_generic::kTable;
  if (name == "avx2" && has_avx2()) return &isa_avx2::kTable;
  if (name == "avx512" && has_avx512()) return &isa_avx512::kTable;
  return nullptr;
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels& table = choose_kernels();
  return table;
}

}  // namespace sftrun::kernels
