#pragma once

#include <functional>
#include <vector>

#include "sftrun/core/quant_format.h"

/// Formats for tests that every format must pass, so that a new row of the table is tested, too.
namespace sftrun::test {

/// The formats with `is_made` for which `holds` is true.
template <class Property>
std::vector<QuantFormat> formats_with(Property holds) {
  std::vector<QuantFormat> formats;
  for (const QuantFormatInfo& info : kQuantFormats)
    if (info.is_made && std::invoke(holds, info)) formats.push_back(info.format);
  return formats;
}
inline std::vector<QuantFormat> made_formats() {
  return formats_with(&QuantFormatInfo::is_made);
}
/// Those whose products keep their other operand as it is.
inline std::vector<QuantFormat> formats_with_exact_activations() {
  return formats_with([](const QuantFormatInfo& info) { return !info.rounds_activations; });
}

}  // namespace sftrun::test
