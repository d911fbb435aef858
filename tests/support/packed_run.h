#pragma once

#include "sftrun/config/run_config.h"

namespace sftrun::test {

/// A step of 16 packed sequences of 512 tokens, in micro-batches of two: four on each of two ranks.
inline config::RunConfig packed_run() {
  config::RunConfig config;
  config.train.batch_size.value = 2;
  config.train.grad_accum.value = 4;
  config.train.global_batch_size.value = 16;
  config.data.packing = true;
  config.data.bin_tokens.value = 512;
  return config;
}

}  // namespace sftrun::test
