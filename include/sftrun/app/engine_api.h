#pragma once

/// The interface between the front end (`sftrun`, without LibTorch) and the engine
/// (`libsftrun_engine.so`). It has only C types, because both contain their own copies of the
/// modules without LibTorch.
///
/// @param command   a row of SFTRUN_ENGINE_COMMANDS (command_list.h)
/// @param request   its request as JSON (request_json.h, requests/). Paths exist, and values are checked.
/// @return the exit code (core/error.h). Errors are printed before it returns; nothing is thrown.
extern "C" int sftrun_engine_run(const char* command, const char* request);
using SftrunEngineRun = int (*)(const char* command, const char* request);
