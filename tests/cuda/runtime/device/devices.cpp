#include "devices.h"

#include <atomic>

#include "report.h"
#include "settings.h"

namespace stand_in {
namespace {

thread_local int current = 0;
thread_local bool chosen = false;
std::atomic<bool> uses_another{false};

}  // namespace

int current_device() {
  return current;
}

bool set_current_device(int device) {
  if (device < 0 || device >= settings().devices) return false;
  current = device;
  chosen = true;
  if (device != 0) uses_another = true;
  return true;
}

void require_chosen_device(const char* what) {
  require(chosen || !uses_another || settings().threads_have_devices, what,
          " in a thread that never set a device, in a process that uses another than device 0");
}

}  // namespace stand_in
