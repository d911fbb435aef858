#pragma once

#include <cstdint>

#include "pattern_cursor.h"

/// Escapes and classes of characters in a pattern. Every function throws a SyntaxProblem.
namespace sftrun::pattern {

/// The code of \n, \., \x41 and the like. @param c what follows the backslash, not a digit
uint32_t read_plain_escape(PatternCursor& text, char c);
/// Of up to three octal digits.
uint32_t read_octal(PatternCursor& text);
/// A class after its opening bracket, to its end.
void read_class(PatternCursor& text);

}  // namespace sftrun::pattern
