#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "commands.h"
#include "engine_location.h"
#include "sftrun/app/engine_api.h"
#include "sftrun/core/error.h"
#include "torch_location.h"

namespace sftrun::app {
namespace {

std::filesystem::path require_engine() {
  if (const auto engine = find_engine()) return *engine;
  std::string looked;
  for (const auto& candidate : engine_candidates()) {
    looked += (looked.empty() ? "" : ", ") + candidate.lexically_normal().string();
  }
  throw DeviceError("the engine (libsftrun_engine.so) is not installed", "looked for " + looked,
                    "build it (make build), or set SFTRUN_ENGINE to its path");
}

bool names_torch(const std::string& reason) {
  return reason.find("libtorch") != std::string::npos || reason.find("libc10") != std::string::npos;
}

std::string looked_for_torch(const std::filesystem::path& engine) {
  std::string text = "the engine's search path";
  if (const auto linked = linked_torch(engine); linked && !fits(*linked))
    text = fmt::format("{} (LibTorch {})", linked->root.string(), linked->version);
  for (const TorchLocation& other : other_torches())
    text += fmt::format(", {} ({})", other.root.string(), other.version);
  return text;
}

[[noreturn]] void report_load_failure(const std::filesystem::path& engine,
                                      const std::string& reason) {
  const bool torch = names_torch(reason);
  const std::string version = built_torch_version();
  throw DeviceError(
      fmt::format("cannot load the engine: {}", reason),
      torch ? fmt::format("{}; looked for LibTorch {} in {}", engine.string(), version,
                          looked_for_torch(engine))
            : engine.string(),
      torch
          ? fmt::format("install LibTorch into the active Python environment (pip install "
                        "'torch=={}.*'), or set SFTRUN_TORCH_ROOT to the folder of one (the torch "
                        "package, or LibTorch); in a checkout scripts/bootstrap.sh installs it",
                        version)
          : "build it again (make build)");
}

/// Loads LibTorch from a folder that the dynamic linker does not search; the engine finds it by name.
void load_torch(const TorchLocation& torch) {
  for (const char* name : {"libc10.so", "libtorch_cpu.so"}) {
    const std::filesystem::path file = torch.root / "lib" / name;
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
      throw DeviceError(fmt::format("cannot load LibTorch: {}", dlerror()), file.string(),
                        "install it again, or set SFTRUN_TORCH_ROOT to the folder of another one");
  }
}

/// Never closed: LibTorch cannot be unloaded safely.
void* open_engine(const std::filesystem::path& engine) {
  const auto open = [&] { return dlopen(engine.c_str(), RTLD_NOW | RTLD_LOCAL); };
  if (const auto chosen = chosen_torch()) load_torch(*chosen);
  if (void* handle = open()) return handle;
  const std::string reason = dlerror();
  if (!names_torch(reason)) report_load_failure(engine, reason);
  for (const TorchLocation& other : other_torches()) {
    if (!fits(other)) continue;
    load_torch(other);
    if (void* handle = open()) return handle;
    report_load_failure(engine, dlerror());
  }
  report_load_failure(engine, reason);
}

/// GNU OpenMP's threads spin for milliseconds at the end of every loop before they sleep. A tenth of
/// a millisecond is enough for most waits on an idle machine. (On cores that other programs use, the
/// engine ends the spinning: src/engine/spinning.h.) OpenMP reads the variable when it is loaded.
void limit_spinning() {
  constexpr int kKeepTheUsers = 0;
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "10000", kKeepTheUsers);
}

/// oneDNN keeps the code of a product for each shape, and LibTorch a second list of it: 1024 each, of
/// some 0.7 MB with AMX. Every number of tokens is another shape, so that a run of bf16 whose batches
/// differ came to 300 MB of code that it does not use again. All products of one shape of a batch have
/// room in 32, and more are no faster. Both are read when the first product is computed.
void limit_product_caches() {
  constexpr int kKeepTheUsers = 0;
  constexpr const char* kProducts = "32";
  if (std::getenv("DNNL_PRIMITIVE_CACHE_CAPACITY") == nullptr)
    ::setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", kProducts, kKeepTheUsers);
  ::setenv("LRU_CACHE_CAPACITY", kProducts, kKeepTheUsers);
}

SftrunEngineRun load_engine() {
  const std::filesystem::path engine = require_engine();
  limit_spinning();
  limit_product_caches();
  void* handle = open_engine(engine);
  auto* run = reinterpret_cast<SftrunEngineRun>(dlsym(handle, "sftrun_engine_run"));
  if (run == nullptr) report_load_failure(engine, dlerror());
  return run;
}

/// A request's texts come from flags and files; the system takes bytes for names, JSON only UTF-8.
std::string text_of(const nlohmann::ordered_json& request) {
  try {
    return request.dump();
  } catch (const nlohmann::json::type_error&) {
    throw ConfigError("a flag or a path is not valid UTF-8", "the command line",
                      "write it in UTF-8, or rename the file");
  }
}

}  // namespace

int run_in_engine(const std::string& command, const nlohmann::ordered_json& request) {
  return load_engine()(command.c_str(), text_of(request).c_str());
}

int run_as_worker(const std::string& command, const nlohmann::ordered_json& request) {
  ::prctl(PR_SET_NAME, "sftrun");  // started through /proc/self/exe, it is listed as "exe"
  const int code = run_in_engine(command, request);
  if (code == 0) return code;
  // Unloading LibTorch takes up to seconds on a busy machine, while other ranks and the user wait.
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace sftrun::app
