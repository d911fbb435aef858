#pragma once

#include "sftrun/kernels/profile_range.h"
#include "sftrun/layers/unit.h"
#include "sftrun/model/decoder.h"

namespace sftrun::model {

/// Runs `body` between the hooks of a unit and of the units that it also reads.
/// @param hooks null: none
template <typename Body>
void use_unit(Decoder& decoder, layers::UnitHooks* hooks, int64_t unit, layers::UnitPass pass,
              Body&& body) {
  const layers::Unit& used = decoder.units()[static_cast<size_t>(unit)];
  const kernels::ProfileRange range(used.name);
  if (hooks == nullptr) return body();
  for (const int64_t other : used.also_reads) hooks->before(other, pass);
  hooks->before(unit, pass);
  decoder.joints().unit_arrived(unit);
  body();
  decoder.joints().unit_leaves(unit);
  hooks->after(unit, pass);
  for (const int64_t other : used.also_reads) hooks->after(other, pass);
}

}  // namespace sftrun::model
