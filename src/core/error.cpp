#include "sftrun/core/error.h"

namespace sftrun {
namespace {

std::string render(const std::string& message, const std::string& where, const std::string& fix) {
  std::string text = "error: " + message;
  if (!where.empty()) text += "\n  at   " + where;
  if (!fix.empty()) text += "\n  fix: " + fix;
  return text;
}

}  // namespace

Error::Error(ExitCode code, std::string message, std::string where, std::string fix)
    : std::runtime_error(render(message, where, fix)),
      code_(code),
      message_(std::move(message)),
      where_(std::move(where)),
      fix_(std::move(fix)) {}

void invariant_failed(const char* file, int line, const std::string& what) {
  throw std::logic_error(fmt::format("internal error: {}:{}: {} does not hold", file, line, what));
}

}  // namespace sftrun
