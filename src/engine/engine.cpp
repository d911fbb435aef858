#include <c10/util/Exception.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <new>

#include "commands.h"
#include "sftrun/app/engine_api.h"
#include "sftrun/config/places.h"
#include "sftrun/core/console_writer.h"
#include "sftrun/core/error.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/error_file.h"

namespace sftrun::engine {
namespace {

using Command = std::function<int(const nlohmann::ordered_json& request)>;

/// Reads the request and runs the command.
template <class Request>
Command guarded(int (*run)(const Request&)) {
  return [run](const nlohmann::ordered_json& json) {
    FailureContext context;
    try {
      const auto request = app::read_json<Request>(json);
      context = failure_context(request);
      return run(request);
    } catch (...) {
      return report_failure(context).code;
    }
  };
}

Command find(const std::string& name) {
  static const std::map<std::string, Command> commands = {
#define SFTRUN_ROW(name, Request) {#name, guarded(run_##name)},
      SFTRUN_ENGINE_COMMANDS(SFTRUN_ROW)
#undef SFTRUN_ROW
  };
  const auto found = commands.find(name);
  SFTRUN_CHECK(found != commands.end());
  return found->second;
}

Failure fail(ExitCode code, const std::string& text, bool peer_lost = false) {
  log::flush();
  // A launcher reports it, once for all ranks.
  launch::write_error_file(text, static_cast<int>(code), std::nullopt, peer_lost);
  // The rank's own log has it from here.
  ConsoleWriter::of_process().write(STDERR_FILENO, text + "\n");
  return {static_cast<int>(code), text};
}

Failure out_of_memory(const char* what, const std::string& advice) {
  return fail(ExitCode::kOutOfMemory,
              Error(ExitCode::kOutOfMemory, first_line(what), {}, advice).what());
}

/// LibTorch's errors end with a C++ stack trace, which belongs in the log, not before the user. Its
/// lines are indented: the launcher shows such a line where it shows the one before.
std::string libtorch_text(const c10::Error& e) {
  log::debug("{}", join(split(e.what(), '\n'), "\n    "));
  std::string text = e.what_without_backtrace();
  text = text.substr(0, text.find("\nException raised from "));  // of an error within this one
  return Error(ExitCode::kWorkerFailed, "LibTorch: " + text).what();
}

int run_guarded(const char* command, const char* request) {
  try {
    return find(command)(nlohmann::ordered_json::parse(request));
  } catch (...) {
    return report_failure({}).code;
  }
}

}  // namespace

Failure report_failure(const FailureContext& context) {
  try {
    throw;
  } catch (const CommError& e) {  // what another rank has done comes first, if it has failed
    return fail(e.code(), e.what(), /*peer_lost=*/true);
  } catch (const Error& e) {
    return fail(e.code(), config::with_place(e, context.places).value_or(e).what());
  } catch (const c10::OutOfMemoryError& e) {
    return out_of_memory(e.what_without_backtrace(), memory_of(e) == Memory::kGpu
                                                         ? context.gpu_memory_advice
                                                         : context.host_memory_advice);
  } catch (const std::bad_alloc&) {
    return out_of_memory("out of memory", context.host_memory_advice);
  } catch (const c10::Error& e) {
    return fail(ExitCode::kWorkerFailed, libtorch_text(e));
  } catch (const nlohmann::json::exception& e) {
    return fail(ExitCode::kWorkerFailed, Error(ExitCode::kWorkerFailed, json_reason(e)).what());
  } catch (const std::exception& e) {
    return fail(ExitCode::kWorkerFailed, Error(ExitCode::kWorkerFailed, e.what()).what());
  }
}

}  // namespace sftrun::engine

extern "C" __attribute__((visibility("default"))) int sftrun_engine_run(const char* command,
                                                                        const char* request) {
  const int code = sftrun::engine::run_guarded(command, request);
  sftrun::log::flush();
  return code;
}
