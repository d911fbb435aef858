#include "arrow_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/python_packages.h"

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

/// Apache Arrow's libraries in a pyarrow package or a folder with lib/: libarrow.so.2600,
/// libparquet.so.2600.
std::vector<fs::path> arrow_files(const fs::path& root) {
  std::vector<fs::path> files;
  for (const std::string name : {"libarrow.so.", "libparquet.so."}) {  // Parquet needs Arrow
    for (const fs::path& folder : {root, root / "lib"}) {
      for (const fs::path& entry : readable_entries_of(folder))
        if (entry.filename().string().starts_with(name)) files.push_back(entry);
    }
  }
  return files;
}

/// Where Apache Arrow may be if the dynamic linker does not find it.
std::vector<fs::path> arrow_roots() {
  const auto variable = [](const char* name) { return std::getenv(name); };
  if (const char* root = variable("SFTRUN_ARROW_ROOT"); root != nullptr && *root != '\0')
    return {root};
  return python_packages("pyarrow", variable);
}

/// Loads the library, with the Apache Arrow of each folder in turn if it is not found without one.
void* open_library(const fs::path& path, std::string& reason) {
  const auto open = [](const fs::path& file) {
    return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  };
  if (void* library = open(path)) return library;
  reason = dlerror();
  if (reason.find("libarrow") == std::string::npos &&
      reason.find("libparquet") == std::string::npos)
    return nullptr;
  for (const fs::path& root : arrow_roots()) {
    for (const fs::path& file : arrow_files(root)) open(file);
    if (void* library = open(path)) return library;
    reason = dlerror();
  }
  return nullptr;
}

const ArrowTable& load() {
  std::string reason = "it was not built";
  for (const fs::path& path : candidates()) {
    if (!leads_to_file(path)) continue;
    void* library = open_library(path, reason);
    if (library == nullptr) continue;
    if (auto* table =
            reinterpret_cast<const ArrowTable* (*)()>(dlsym(library, "sftrun_arrow_table")))
      return *table();
    reason = "it belongs to another build";
  }
  throw DataError(
      fmt::format("CSV, Parquet, Arrow and compressed files need {}: {}", kName, reason), {},
      "install Apache Arrow into the active Python environment (pip install " SFTRUN_ARROW_PACKAGE
      "; in a checkout scripts/bootstrap.sh does), or convert the file to JSON lines");
}

}  // namespace

const ArrowTable& arrow_library() {
  static const ArrowTable& table = load();
  return table;
}

}  // namespace sftrun::data
