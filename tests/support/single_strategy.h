#pragma once

#include <memory>

#include "sftrun/model/decoder.h"
#include "sftrun/parallel/strategy.h"

namespace sftrun::test {

/// The strategy of one process, for a decoder's parameters. It keeps no reference to the communicator.
inline std::unique_ptr<parallel::Strategy> single_strategy(model::Decoder& decoder) {
  parallel::Communicator alone;
  parallel::MeshGroups groups(alone, parallel::Mesh::replicated(1, 0));
  return parallel::make_strategy({}, groups,
                                 {decoder.parameters(), decoder.units(), decoder.options().device});
}

}  // namespace sftrun::test
