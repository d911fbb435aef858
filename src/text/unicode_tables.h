#pragma once

#include "unicode.h"

namespace sftrun::text {

struct PropertyRun {
  uint32_t first;      ///< the run lasts to the next entry
  uint8_t properties;  ///< bits 0-4 category, 5 NFC-active, 6 \w of oniguruma, 7 \w of Rust
};
struct CombiningRun {
  uint32_t first, last;
  uint8_t combining_class;
};
struct Decomposition {
  uint32_t from, first, second;  ///< second is 0 when one code point stands for another
  bool composes;
};

#include "unicode_data.inc"

}  // namespace sftrun::text
