#include "determinism.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace sftrun::engine {

void sum_in_fixed_order() {
  // cuBLAS may otherwise choose among workspaces (its documentation, "Results reproducibility").
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& libtorch = at::globalContext();
  libtorch.setDeterministicAlgorithms(true, /*warn_only=*/false);
  libtorch.setDeterministicFillUninitializedMemory(false);  // a check for errors, which costs time
  libtorch.setDeterministicCuDNN(true);
}

}  // namespace sftrun::engine
