#pragma once

#include "sftrun/app/requests/all_reduce.h"
#include "sftrun/app/requests/bench.h"
#include "sftrun/app/requests/chat.h"
#include "sftrun/app/requests/eval.h"
#include "sftrun/app/requests/generate.h"
#include "sftrun/app/requests/merge.h"
#include "sftrun/app/requests/quantize.h"
#include "sftrun/app/requests/score.h"
#include "sftrun/app/requests/serve.h"
#include "sftrun/app/requests/worker.h"

/// All commands. The program and the engine make different functions and tables of these lists, so they
/// are macros. ROW is what becomes of a row.

/// Subcommands of the program, in the order of `sftrun --help`. `Command add_NAME(CLI::App& sftrun)` in
/// src/app/cli_NAME.cpp registers one.
#define SFTRUN_SUBCOMMANDS(ROW) \
  ROW(train)                    \
  ROW(generate)                 \
  ROW(chat)                     \
  ROW(serve)                    \
  ROW(eval)                     \
  ROW(score)                    \
  ROW(reward)                   \
  ROW(tokenize)                 \
  ROW(preview)                  \
  ROW(merge)                    \
  ROW(quantize)                 \
  ROW(bench)                    \
  ROW(download)                 \
  ROW(upload)                   \
  ROW(gpu_info)                 \
  ROW(memory_check)             \
  ROW(report)                   \
  ROW(doctor)                   \
  ROW(config)

/// Commands of the engine with their requests. `int run_NAME(const app::REQUEST& request)` in
/// src/engine/NAME.cpp runs one and returns the process's exit code.
#define SFTRUN_ENGINE_COMMANDS(ROW) \
  ROW(worker, WorkerRequest)        \
  ROW(generate, GenerateRequest)    \
  ROW(eval, EvalRequest)            \
  ROW(score, ScoreRequest)          \
  ROW(serve, ServeRequest)          \
  ROW(chat, ChatRequest)            \
  ROW(merge, MergeRequest)          \
  ROW(quantize, QuantizeRequest)    \
  ROW(bench, BenchRequest)          \
  ROW(all_reduce, AllReduceRequest)

namespace sftrun::app {

/// The name of a request's command.
#define SFTRUN_ROW(name, Request)                                \
  constexpr const char* command_of(const Request& /*request*/) { \
    return #name;                                                \
  }
SFTRUN_ENGINE_COMMANDS(SFTRUN_ROW)
#undef SFTRUN_ROW

}  // namespace sftrun::app
