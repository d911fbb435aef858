#include "sftrun/core/error.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "sftrun/core/short_quotes.h"
#include "sftrun/core/utf8.h"

namespace sftrun {
namespace {

std::string render(const std::string& message, const std::string& where, const std::string& fix) {
  std::string text = "error: " + message;
  if (!where.empty()) text += "\n  at   " + where;
  if (!fix.empty()) text += "\n  fix: " + fix;
  return text;
}

/// Truncates long texts, so that a quote of a file does not fill the console.
std::string bounded(std::string text) {
  constexpr size_t kMaxBytes = 16 << 10;
  if (text.size() <= kMaxBytes) return text;
  return fmt::format("{}… ({} bytes)", utf8_prefix(text, kMaxBytes), text.size());
}

}  // namespace

// NOLINTNEXTLINE(performance-unnecessary-value-param): as the other constructors have them; errors are rare
Error::Error(ExitCode code, std::string message, std::string where, std::string fix)
    : Error(Bounded{}, code, bounded(with_short_quotes(with_visible_controls(message))),
            bounded(with_short_quotes_after_path(with_visible_controls(where))),
            bounded(with_short_quotes(with_visible_controls(fix)))) {}

Error::Error(Bounded, ExitCode code, std::string message, std::string where, std::string fix)
    : std::runtime_error(render(message, where, fix)),
      code_(code),
      message_(std::move(message)),
      where_(std::move(where)),
      fix_(std::move(fix)) {}

void end_on_bad_alloc() {
  std::set_terminate([] {
    try {
      if (const std::exception_ptr thrown = std::current_exception())
        std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      constexpr std::string_view kText = "error: out of memory\n";
      [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText.data(), kText.size());
      ::_exit(static_cast<int>(ExitCode::kOutOfMemory));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "error: %s\n", error.what());
    } catch (...) {
    }
    std::abort();
  });
}

void invariant_failed(const char* file, int line, const std::string& what) {
  throw std::logic_error(fmt::format("internal error: {}:{}: {} does not hold", file, line, what));
}

}  // namespace sftrun
