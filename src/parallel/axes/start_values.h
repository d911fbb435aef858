#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "sftrun/layers/parameter.h"

namespace sftrun::parallel {

/// Copies of whole flat buffers as they were at the start, which change places with what the
/// buffers hold now.
class StartValues {
 public:
  /// Keeps the copies in the compute dtype, and the masters if passes read them.
  void keep(const layers::FlatValues& flat, bool reads_masters);
  /// Keeps the master of a parameter that passes read in fp32.   @pre its buffers' is not kept
  void keep_master(const layers::Parameter& parameter);
  /// Called twice, every value is where it was.
  void exchange() const;
  uint64_t bytes() const;

 private:
  struct Pair {
    at::Tensor used, kept;  // of the same size
  };
  std::vector<Pair> buffers_;  // whole: their memory is exchanged
  std::vector<Pair> masters_;  // views: their values are
};

}  // namespace sftrun::parallel
