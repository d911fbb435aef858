#pragma once

#include "unicode.h"

namespace sftrun::tokenizer {

struct PropertyRun {
  uint32_t first;       ///< the run lasts to the next entry
  uint16_t properties;  ///< bits 0-4 category, the others as PropertyTable names them
};
struct CombiningRun {
  uint32_t first, last;
  uint8_t combining_class;
};
struct Decomposition {
  uint32_t from, first, second;  ///< second is 0 when one code point stands for another
  bool composes;
};

struct Compatible {
  uint32_t from;
  uint16_t offset, length;  ///< in kCompatibleChars
};
struct LowerCase {
  uint32_t from, first, second;  ///< second is 0 when there is none
};
struct ScriptRun {
  uint32_t first;  ///< the run lasts to the next entry
  uint8_t script;
};

#include "unicode_data.inc"

}  // namespace sftrun::tokenizer
