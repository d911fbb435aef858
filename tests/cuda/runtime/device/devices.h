#pragma once

/// The current device of each thread.
namespace stand_in {

int current_device();
/// False if there is no such device.
bool set_current_device(int device);

/// A thread that never chose a device works on device 0. In a process that uses another one that
/// is a mistake: some guard is missing.
void require_chosen_device(const char* what);

}  // namespace stand_in
