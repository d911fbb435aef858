#include "cuda_library.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "sftrun/kernels/cuda_archs.h"
#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/parallel/nccl_factory.h"

namespace sftrun::engine {
namespace {

/// The folder of the library that has this code or these data.
std::filesystem::path directory_of(const void* symbol) {
  Dl_info info{};
  if (dladdr(symbol, &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

/// LibTorch's CUDA library lies beside the LibTorch that was loaded, which may be in a folder that the
/// dynamic linker does not search.
void* open_torch_cuda() {
  constexpr const char* kName = "libtorch_cuda.so";
  if (void* library = dlopen(kName, RTLD_NOW | RTLD_GLOBAL)) return library;
  const std::filesystem::path torch =
      directory_of(reinterpret_cast<const void*>(&at::globalContext));
  const std::filesystem::path beside = torch / kName;
  return dlopen(std::filesystem::exists(beside) ? beside.c_str() : kName, RTLD_NOW | RTLD_GLOBAL);
}

std::string last_dl_error() {
  const char* error = dlerror();
  return error ? error : "unknown error";
}

struct Card {
  int ordinal = 0, major = 0, minor = 0;
  std::string name;
};

/// Asks the driver, with CUDA's driver API declared here: the engine is built without CUDA's
/// headers.
std::vector<Card> cards_of(void* driver) {
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count_of = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto name_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  if (!init || !count_of || !get || !name_of || !attribute) return {};
  constexpr int kComputeMajor = 75,
                kComputeMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  int count = 0;
  if (init(0) != 0 || count_of(&count) != 0) return {};
  std::vector<Card> cards;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Card card{.ordinal = ordinal, .name = "unnamed"};
    int device = 0;
    if (get(&device, ordinal) != 0 || attribute(&card.major, kComputeMajor, device) != 0 ||
        attribute(&card.minor, kComputeMinor, device) != 0) {
      continue;
    }
    std::array<char, 256> name{};
    if (name_of(name.data(), static_cast<int>(name.size()) - 1, device) == 0)
      card.name = name.data();
    cards.push_back(std::move(card));
  }
  return cards;
}

std::string described(const Card& card) {
  return fmt::format("GPU {} ({}) is sm_{}{}", card.ordinal, card.name, card.major, card.minor);
}

constexpr const char* kLeaveOut = "(CUDA_VISIBLE_DEVICES can leave it out)";

/// Names the first card older than Ampere; empty if there is none.
std::string too_old_card(const std::vector<Card>& cards) {
  for (const Card& card : cards) {
    if (card.major < 8)
      return fmt::format("{}; sm_80 or newer is needed {}", described(card), kLeaveOut);
  }
  return {};
}

/// Names the first card that this build holds no code for; empty if there is none.
std::string unbuilt_card(const std::vector<Card>& cards, const std::string& built) {
  for (const Card& card : cards) {
    if (kernels::cuda_code_runs_on(built, card.major, card.minor)) continue;
    return fmt::format(
        "{}, and this build holds CUDA code for {} only; build again on this machine, or with "
        "-DSFTRUN_CUDA_ARCHS=release {}",
        described(card), built, kLeaveOut);
  }
  return {};
}

/// Lengths vary from batch to batch, and segments of one fixed size each would be left half empty
/// (LibTorch's documentation, "Optimizing memory usage with PYTORCH_ALLOC_CONF"). Read when the
/// library is loaded. What the user has set stays.
void choose_allocator() {
  if (std::getenv("PYTORCH_ALLOC_CONF") || std::getenv("PYTORCH_CUDA_ALLOC_CONF")) return;
  setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);
}

CudaStatus load_with(void* driver) {
  const std::vector<Card> cards = cards_of(driver);
  if (std::string refusal = too_old_card(cards); !refusal.empty()) return {0, std::move(refusal)};
  choose_allocator();
  // Before the first CUDA query: LibTorch caches its answer.
  if (open_torch_cuda() == nullptr) {
    return {0, "this LibTorch has no CUDA: " + last_dl_error()};
  }
  const std::filesystem::path path =
      directory_of(reinterpret_cast<const void*>(&load_cuda_library)) / "libsftrun_cuda.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return {0, "the CUDA kernels were not built or do not load: " + last_dl_error()};
  const auto functions =
      reinterpret_cast<const kernels::CudaFunction* (*)()>(dlsym(library, "sftrun_cuda_functions"));
  const auto nccl = reinterpret_cast<parallel::NcclFactory>(dlsym(library, "sftrun_nccl_backend"));
  const auto architectures =
      reinterpret_cast<const char* (*)()>(dlsym(library, "sftrun_cuda_architectures"));
  if (functions == nullptr || nccl == nullptr || architectures == nullptr)
    return {0, path.string() + " belongs to another build"};
  if (const std::string difference = kernels::cuda_difference(functions()); !difference.empty())
    return {0, fmt::format("{} belongs to another build: {}", path.string(), difference)};
  if (std::string refusal = unbuilt_card(cards, architectures()); !refusal.empty())
    return {0, std::move(refusal)};
  kernels::register_cuda_functions(functions());
  parallel::register_nccl_factory(nccl);
  const int devices =
      at::globalContext().hasCUDA()
          ? static_cast<int>(
                at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount())
          : 0;
  return {devices, devices > 0 ? "" : "the driver reports no usable GPU"};
}

CudaStatus load() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return {0, "no NVIDIA driver (libcuda.so.1) on this machine"};
  CudaStatus status = load_with(driver);
  status.has_driver = true;
  return status;
}

}  // namespace

CudaStatus load_cuda_library() {
  static const CudaStatus status = load();
  return status;
}

}  // namespace sftrun::engine
