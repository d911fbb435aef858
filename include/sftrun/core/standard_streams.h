#pragma once

#include <functional>
#include <string_view>

/// The descriptors 0, 1 and 2 of this process.
namespace sftrun {

/// Opens what the process was started without (`2>&-`): files would get the numbers, and be written
/// to as if they were the console. Reading such a standard input finds its end, and writing to such a
/// standard output fails. Call it before anything is opened.
void open_standard_streams();

/// Writes to standard output, after what stdio holds of it.
/// @param stop_code asked while nobody reads; not 0: the exit code of a stop. Empty: never stopped
/// @throws DeviceError if it cannot be written; Error with the code of a stop
void write_standard_output(std::string_view text, const std::function<int()>& stop_code = {});

/// Flushes what stdio holds of standard output. @throws DeviceError if some of it, or of what was
/// written before, could not be written
/// @param known_error errno of a write that has failed before; 0: unknown
void require_standard_output(int known_error = 0);

}  // namespace sftrun
