#pragma once

#include "sftrun/plan/blocks.h"

/// A layer: the rows of its blocks together, with residuals and adapters.
namespace sftrun::plan {

/// What a layer keeps between its passes, and needs beside that in its backward pass.
struct KeptBytes {
  int64_t between = 0, in_backward = 0;
};
KeptBytes kept_bytes(const StepContext& step, int64_t layer, config::Checkpointing again);

/// What a layer needs in a pass of generation.
int64_t pass_bytes(const StepContext& pass, int64_t layer);

/// "delta net, experts"
std::string layer_kind(const spec::ArchSpec& arch, int64_t layer);

}  // namespace sftrun::plan
