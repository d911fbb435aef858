#include "nvtx.h"

#ifdef SFTRUN_HAS_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace sftrun::kernels {

#ifdef SFTRUN_HAS_NVTX

namespace {

/// null: no tool listens
nvtxDomainHandle_t nvtx_domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("sftrun");
  return domain;
}

}  // namespace

bool nvtx_listens() {
  return nvtx_domain() != nullptr;
}

void nvtx_push(const std::string& name) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name.c_str();
  nvtxDomainRangePushEx(nvtx_domain(), &range);
}

void nvtx_pop() {
  nvtxDomainRangePop(nvtx_domain());
}

#else

bool nvtx_listens() {
  return false;
}
void nvtx_push(const std::string&) {}
void nvtx_pop() {}

#endif

}  // namespace sftrun::kernels
