// A tool that listens to NVTX, as Nsight Systems does: loaded by NVTX from NVTX_INJECTION64_PATH. Writes a line for each call into the
// file NVTX_LISTENER_OUTPUT with the process's id at its end: "domain NAME", "push THREAD NAME", "pop THREAD".
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace {

void write_line(const std::string& line) {
  static std::mutex mutex;
  static std::FILE* const file = [] {
    const char* path = std::getenv("NVTX_LISTENER_OUTPUT");
    return path ? std::fopen((std::string(path) + "." + std::to_string(::getpid())).c_str(), "w")
                : nullptr;
  }();
  const std::lock_guard lock(mutex);
  if (file == nullptr) return;
  std::fputs((line + "\n").c_str(), file);
  std::fflush(file);
}

std::string this_thread() {
  return std::to_string(std::hash<std::thread::id>{}(std::this_thread::get_id()));
}

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  write_line(std::string("domain ") + name);
  static int domain;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
  write_line("push " + this_thread() + " " + range->message.ascii);
  return 0;
}

int NVTX_API pop(nvtxDomainHandle_t) {
  write_line("pop " + this_thread());
  return 0;
}

template <class Function>
void listen(NvtxFunctionTable table, int id, Function* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
    return 0;
  listen(table, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  listen(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  listen(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}
