#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sftrun {

/// The candidate with the smallest edit distance (optimal string alignment) to `word`, or "" if
/// none is similar enough (distance at most a third of the longer word, plus one, and below the
/// length of the shorter). A candidate that continues `word` with _ or - comes first: q4_k_m for
/// q4_k, of which q6_k has the smaller distance. Any that continues four letters or more comes before
/// a distance of two: packing for pack, not rank. `word` itself comes before all.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string join(std::span<const std::string> parts, std::string_view separator);
/// "a, b or c"   @param last " or ", " and "
std::string joined(std::span<const std::string> parts, std::string_view last);
/// Changes ASCII letters only.
std::string ascii_lower(std::string text);
/// A letter or digit of ASCII, or an underscore.
bool is_word_char(char c);

/// Whether a dotted name is `ending` or ends in it, as peft matches names: "mlp.down_proj" in
/// "layers.0.mlp.down_proj", not in "layers.0.xmlp.down_proj".
bool ends_with_name(std::string_view name, std::string_view ending);
/// Whether `part` is one or more complete components of a dotted path: "layers.0" of
/// "model.layers.0.mlp".
bool has_path_part(std::string_view path, std::string_view part);

/// A quote of a text of any length, for errors: its first 200 characters and, if it is longer, its
/// size in bytes.
std::string excerpt(std::string_view text);

/// A word of a shell command for copying: in single quotes if it contains special characters.
std::string shell_word(std::string_view text);

}  // namespace sftrun
