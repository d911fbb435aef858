#pragma once

/// Clocks as seconds in a double.
namespace sftrun {

/// A clock that never goes back. Only differences have a meaning.
double monotonic_seconds();

/// Seconds since 1970-01-01 00:00 UTC, of the system's clock, which may be set back.
double unix_seconds();

}  // namespace sftrun
