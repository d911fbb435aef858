#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/layers/linear.h"
#include "sftrun/layers/mixture.h"

/// The members of a block by role: who loads a model finds them by the roles of spec/blocks.h.
namespace sftrun::layers {

/// In the order in which they compute.
template <typename T>
using Named = std::vector<std::pair<std::string_view, T>>;

/// Destination of a tensor of the model.
struct Place {
  at::Tensor* weight = nullptr;
  Parameter** parameter = nullptr;
};
template <typename Holder>
Place place_of(Holder& holder) {
  return {&holder.weight, &holder.parameter};
}

struct BlockMembers {
  Named<Norm*> norms;
  Named<Place> weights;
  Named<Linear*> linears;
  Named<ExpertMatrix*> experts;
};

/// @pre there is one
template <typename T>
T find(const Named<T>& members, std::string_view role) {
  for (const auto& [name, member] : members)
    if (name == role) return member;
  invariant_failed(__FILE__, __LINE__, "a block has a member for each role");
}

}  // namespace sftrun::layers
