#include "report.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "settings.h"

namespace stand_in {
namespace {

std::string quoted(const std::string& value) {
  std::string result = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + '"';
}

std::atomic<bool> written{false};

/// Appended to: processes of one rank that follow each other write one file.
int log_file() {
  static const int file = [] {
    const std::string& path = settings().log;
    if (path.empty()) return -1;
    const int opened = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    require(opened >= 0, "cannot write ", path);
    const std::string start = text("{\"event\":\"start\",\"pid\":", ::getpid(), "}\n");
    if (::write(opened, start.data(), start.size()) < 0) fail("cannot write " + path);
    return opened;
  }();
  return file;
}

}  // namespace

void fail(const std::string& what) {
  const std::string line = "stand-in: " + what + "\n";
  std::fputs(line.c_str(), stderr);
  std::abort();
}

std::unique_lock<std::recursive_mutex> lock_tables() {
  static auto* const mutex = new std::recursive_mutex;  // outlives every destructor
  return std::unique_lock(*mutex);
}

bool Event::any() {
  return written;
}

Event::Event(const char* kind) : line_(text("{\"event\":\"", kind, '"')) {}

Event::~Event() {
  written = true;
  line_ += "}\n";
  if (const int file = log_file(); file >= 0 && ::write(file, line_.data(), line_.size()) < 0)
    fail("the log cannot be written");
}

Event& Event::raw(const char* key, const std::string& value) {
  line_.append(",\"").append(key).append("\":").append(value);
  return *this;
}

Event& Event::with(const char* key, const std::string& value) {
  return raw(key, quoted(value));
}

Event& Event::with(const char* key, double value) {
  return raw(key, text(value));
}

Event& Event::with(const char* key, bool value) {
  return raw(key, value ? "true" : "false");
}

}  // namespace stand_in
