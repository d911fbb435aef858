#pragma once

#include <ATen/Parallel.h>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace sftrun::kernels {

/// at::parallel_for: body(begin, end) over parts of [begin, end) of at least `grain` elements.
/// Tells ThreadSanitizer about OpenMP's synchronisation, which it does not detect.
template <typename Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
#ifdef __SANITIZE_THREAD__
  char started = 0, ended = 0;
  __tsan_release(&started);
  at::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
    __tsan_acquire(&started);
    body(first, last);
    __tsan_release(&ended);
  });
  __tsan_acquire(&ended);
#else
  at::parallel_for(begin, end, grain, body);
#endif
}

}  // namespace sftrun::kernels
