#include "arrow_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kName = "libsftrun_arrow.so";

/// This code is in lib/libsftrun_engine.so, or in bin/sftrun beside lib.
std::vector<fs::path> candidates() {
  std::vector<fs::path> found;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&arrow_library), &info) != 0) {
    std::error_code ignored;
    const fs::path own = fs::canonical(
        info.dli_fname[0] == '/' ? fs::path(info.dli_fname) : fs::path("/proc/self/exe"), ignored);
    found.push_back(own.parent_path() / kName);
    found.push_back(own.parent_path().parent_path() / "lib" / kName);
  }
  return found;
}

const ArrowTable& load() {
  std::string reason = "it was not built";
  for (const fs::path& path : candidates()) {
    if (!leads_to_file(path)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto table =
        library ? reinterpret_cast<const ArrowTable* (*)()>(dlsym(library, "sftrun_arrow_table"))
                : nullptr;
    if (table != nullptr) return *table();
    const char* error = dlerror();
    reason = error ? error : "it belongs to another build";
  }
  throw DataError(
      fmt::format("CSV, Parquet, Arrow and compressed files need {}: {}", kName, reason), {},
      "build with Apache Arrow (scripts/bootstrap.sh installs it), or convert the file to JSON "
      "lines");
}

}  // namespace

const ArrowTable& arrow_library() {
  static const ArrowTable& table = load();
  return table;
}

}  // namespace sftrun::data
