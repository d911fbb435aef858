#pragma once

#include <c10/core/Stream.h>

#include <optional>

#include "sftrun/kernels/side_stream.h"

namespace sftrun::parallel {

/// The stream of copies, to be made the current one; nullopt: there is none. It waits for what is
/// queued so far, because memory that the allocator gives now may still be in use by it.
inline std::optional<c10::Stream> stream_of(const std::optional<kernels::SideStream>& copies) {
  if (!copies) return std::nullopt;
  copies->follow_current();
  return copies->stream();
}

}  // namespace sftrun::parallel
