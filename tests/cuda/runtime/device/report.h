#pragma once

#include <mutex>
#include <sstream>
#include <string>

/// What the stand-in says, and the lock that its tables share.
namespace stand_in {

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// A fault of the program under test: one line on stderr that starts with "stand-in:", and abort.
[[noreturn]] void fail(const std::string& what);

template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) fail(text(parts...));
}

/// Of all tables. Recursive: entry points call each other.
std::unique_lock<std::recursive_mutex> lock_tables();

/// One line of the log, written when it goes out of scope. Lines are complete whatever ends the
/// process: each is one write(2).
class Event {
 public:
  explicit Event(const char* kind);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Whether this process wrote any.
  static bool any();

  Event& with(const char* key, const std::string& value);
  Event& with(const char* key, const char* value) { return with(key, std::string(value)); }
  Event& with(const char* key, double value);
  Event& with(const char* key, bool value);
  template <typename Integer>
  requires std::is_integral_v<Integer> Event& with(const char* key, Integer value) {
    return raw(key, std::to_string(value));
  }

 private:
  Event& raw(const char* key, const std::string& value);
  std::string line_;
};

}  // namespace stand_in
