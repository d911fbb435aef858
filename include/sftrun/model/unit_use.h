#pragma once

#include <utility>
#include <vector>

#include "sftrun/kernels/profile_range.h"
#include "sftrun/layers/unit.h"

namespace sftrun::model {

/// Runs `body` between the hooks of a unit and of the units that it also reads.
/// @param hooks null: none
template <typename Body>
void use_unit(const std::vector<layers::Unit>& units, layers::UnitHooks* hooks, int64_t unit,
              layers::UnitPass pass, Body&& body) {
  const layers::Unit& used = units[static_cast<size_t>(unit)];
  const kernels::ProfileRange range(used.name);
  if (hooks == nullptr) return body();
  for (const int64_t other : used.also_reads) hooks->before(other, pass);
  hooks->before(unit, pass);
  body();
  hooks->after(unit, pass);
  for (const int64_t other : used.also_reads) hooks->after(other, pass);
}

}  // namespace sftrun::model
