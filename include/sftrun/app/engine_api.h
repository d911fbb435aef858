#pragma once

/// The one door between the front (`sftrun`, no LibTorch) and the engine (`libsftrun_engine.so`), crossed with plain C types:
/// both carry their own copies of the rooms without LibTorch.
///
/// @param command "worker", "generate", "score", "merge", "bench", "versions"
/// @param request a JSON object. For "worker": {"config": config::to_json, "config_path", "overrides": [{key,value,source}],
///   "resume", "allow_changed_data", "allow_backend_change", "device", "profile"}. For the others: every flag of the command by its long
///   name with underscores ("max_new_tokens"), typed, null when not given.
/// @return the process's exit code (core/error.h). Errors are printed before it returns; nothing is thrown.
extern "C" int sftrun_engine_run(const char* command, const char* request);
using SftrunEngineRun = int (*)(const char* command, const char* request);
