#include "kernels.h"

#include <cxxabi.h>

#include <cstdlib>
#include <string>
#include <unordered_map>

#include "devices.h"
#include "report.h"
#include "settings.h"
#include "streams.h"

namespace stand_in {
namespace {

struct Kernel {
  int number = 0;                 // that the log's lines have instead of the name
  const char* mangled = nullptr;  // of the library, which stays loaded
  int max_threads = 1024, shared_bytes = kSharedBytes;
};

/// LibTorch alone registers some 33,000 kernels in every process.
std::unordered_map<const void*, Kernel>& kernels() {
  using Kernels = std::unordered_map<const void*, Kernel>;
  static auto* const result = new Kernels(size_t{1} << 16);  // outlives every destructor
  return *result;
}

Kernel& kernel_of(const void* handle) {
  const auto found = kernels().find(handle);
  require(found != kernels().end(), "launch of ", handle, ", which is no registered kernel");
  return found->second;
}

std::string demangled(const char* name) {
  int status = 0;
  char* readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = readable ? readable : name;
  std::free(readable);
  return result;
}

/// Templates of LibTorch have names of a thousand characters: each is written once.
int number_of(Kernel& kernel) {
  static int last = 0;
  if (kernel.number == 0) {
    kernel.number = ++last;
    Event("kernel").with("id", kernel.number).with("name", demangled(kernel.mangled));
  }
  return kernel.number;
}

std::string text_of(const dim3& size) {
  return text(size.x, ",", size.y, ",", size.z);
}

/// CUDA C++ programming guide, "technical specifications per compute capability".
void check(const Launch& what, const Kernel& kernel) {
  const dim3 &grid = what.grid, &block = what.block;
  const auto threads = size_t{block.x} * block.y * block.z;
  const auto name = [&] { return demangled(kernel.mangled); };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535u ||
      grid.z > 65535u)
    fail(text("launch with a grid of ", text_of(grid), ": ", name()));
  if (threads == 0 || threads > 1024 || block.z > 64 ||
      threads > static_cast<size_t>(kernel.max_threads))
    fail(text("launch with a block of ", text_of(block), ": ", name()));
  if (what.shared_bytes > static_cast<size_t>(kernel.shared_bytes))
    fail(text("launch with ", what.shared_bytes, " bytes of shared memory, of ",
              kernel.shared_bytes, " allowed: ", name()));
}

}  // namespace

void register_kernel(const void* kernel, const char* mangled, int max_threads) {
  kernels()[kernel] = {.mangled = mangled, .max_threads = max_threads > 0 ? max_threads : 1024};
}

void allow_shared_bytes(const void* kernel, int bytes) {
  Kernel& known = kernel_of(kernel);
  if (bytes > settings().shared_bytes_opt_in())
    fail(text("opt-in for ", bytes, " bytes of shared memory, of ",
              settings().shared_bytes_opt_in(), ": ", demangled(known.mangled)));
  known.shared_bytes = std::max(kSharedBytes, bytes);
}

int allowed_shared_bytes(const void* kernel) {
  return kernel_of(kernel).shared_bytes;
}

void launch(const Launch& what) {
  Kernel& kernel = kernel_of(what.kernel);
  check(what, kernel);
  Stream& stream = stream_of_current_device(what.stream, "launch");
  const int number = number_of(kernel);
  const bool captured = recorded(stream, {"kernel", {}});
  Event(captured ? "captured_launch" : "launch")
      .with("kernel", number)
      .with("grid", text_of(what.grid))
      .with("block", text_of(what.block))
      .with("shared", what.shared_bytes)
      .with("device", current_device())
      .with("stream", stream.id)
      .with("stream_device", stream.device);
}

}  // namespace stand_in
