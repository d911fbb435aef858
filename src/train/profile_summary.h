#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sftrun::train {

/// Something that a profiler recorded.
struct ProfileEvent {
  std::string name;
  uint64_t thread = 0;  ///< of the host
  int64_t begin_ns = 0, end_ns = 0;
  bool on_device = false;  ///< a kernel or copy on a GPU; else work of a host thread
};

/// The name of the range around a step.
inline constexpr const char* kStepRange = "step";

/// A page that says where the time of the steps goes: the parts of a step, the operations of the
/// thread that trains, and what runs on the GPU. Seconds of a part or operation are without those of
/// the parts or operations inside it.
/// @param events of all threads, among them ranges "step N"
std::string profile_summary(std::vector<ProfileEvent> events, int rank);

}  // namespace sftrun::train
