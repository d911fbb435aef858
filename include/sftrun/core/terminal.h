#pragma once

/// What may be written to a terminal.
namespace sftrun {

/// Whether a terminal is behind the descriptor on which lines can be erased and written again: not a
/// file, a pipe, or a terminal with TERM=dumb.
bool is_redrawable(int fd);

/// Whether the user wants no colours: NO_COLOR is set and not empty (https://no-color.org).
bool wants_no_color();

}  // namespace sftrun
