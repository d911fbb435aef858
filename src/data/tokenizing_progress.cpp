#include "tokenizing_progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/log.h"
#include "sftrun/core/units.h"

namespace sftrun::data {

void TokenizingProgress::update(double fraction, int64_t num_records) {
  const auto now = Clock::now();
  if (now - last_ < every_) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  log::info("data: {}", line(name_, fraction, num_records, seconds));
}

std::string TokenizingProgress::line(const std::string& name, double fraction, int64_t num_records,
                                     double seconds) {
  const double done = std::clamp(fraction, 1e-9, 1.0);
  return fmt::format("{}: {:.0f}% tokenized ({} records), about {} left", name, 100 * done,
                     format_count(static_cast<uint64_t>(num_records)),
                     format_duration(seconds / done - seconds));
}

}  // namespace sftrun::data
