#include "line_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "sftrun/core/strings.h"

namespace sftrun::launch {

/// `[12:03:04.118] [info] [rank 0] message`, as core/log.h writes it.
struct LineFilter::LogLine {
  std::string_view level, message;
  bool names_rank = false;
};

namespace {

std::optional<std::string_view> take_bracket(std::string_view& text) {
  if (text.empty() || text.front() != '[') return std::nullopt;
  const size_t close = text.find(']');
  if (close == std::string_view::npos) return std::nullopt;
  const std::string_view inside = text.substr(1, close - 1);
  text.remove_prefix(std::min(text.size(), close + 2));
  return inside;
}

template <class LogLine>
std::optional<LogLine> parse_house_line(std::string_view line) {
  const auto time = take_bracket(line);
  if (!time || time->size() != 12 || (*time)[2] != ':' || (*time)[5] != ':') return std::nullopt;
  const auto level = take_bracket(line);
  if (!level) return std::nullopt;
  LogLine house{.level = *level, .message = line};
  if (house.message.starts_with("[rank ")) {
    take_bracket(house.message);
    house.names_rank = true;
  }
  return house;
}

bool contains_word_of_trouble(std::string_view line) {
  // Levels of LibTorch and NCCL, final messages of the C++ runtime, and common words.
  for (const std::string_view words :
       {"[W", "[E", "[F", "NCCL WARN", "terminate called", "what():", "warning", "WARNING",
        "Warning", "error", "ERROR", "Error", "fatal", "FATAL", "Assertion", "Sanitizer"}) {
    if (line.find(words) != std::string_view::npos) return true;
  }
  return false;
}

bool is_continuation(std::string_view line) {
  return !line.empty() && (line.front() == ' ' || line.front() == '\t');
}

size_t skip_digits(std::string_view text, size_t at) {
  while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
  return at;
}

}  // namespace

bool is_step_line(std::string_view message) {
  constexpr std::string_view kStep = "step ";
  if (!message.starts_with(kStep)) return false;
  const size_t slash = skip_digits(message, kStep.size());
  if (slash == kStep.size() || slash >= message.size() || message[slash] != '/') return false;
  const size_t end = skip_digits(message, slash + 1);
  return end > slash + 1 && message.substr(end).starts_with(" loss ");
}

bool is_stack_trace(std::string_view line) {
  line = trim(line);
  return line.starts_with("frame #") || line.starts_with("Exception raised from ");
}

bool LineFilter::should_show(std::string_view line) {
  if (const auto house = parse_house_line<LogLine>(line)) {
    is_in_error_ = false;
    if (house->level == "error" || house->level == "critical") return true;
    if (is_about_run(*house)) return options_.warnings->add(house->message);
    if (house->level == "warning") return true;
    if (!shows_level(house->level)) return false;
    return !(options_.hide_steps && is_step_line(house->message));
  }
  // The supervisor prints the worker's error itself, all lines of it.
  if (stream_ == Stream::kErr && line.starts_with("error: ")) is_in_error_ = true;
  if (is_in_error_) return false;
  if (is_stack_trace(line)) return false;
  if (is_continuation(line)) return last_shown_;
  if (options_.is_main && options_.verbosity != log::Verbosity::kQuiet) return true;
  return stream_ == Stream::kErr && contains_word_of_trouble(line);
}

/// @param level below warning
bool LineFilter::shows_level(std::string_view level) const {
  const bool is_info = level == "info";
  switch (options_.verbosity) {
    case log::Verbosity::kQuiet:
      return false;
    case log::Verbosity::kNormal:
      return is_info && options_.is_main;
    case log::Verbosity::kVerbose:
      return is_info || options_.is_main;
  }
  return false;
}

bool LineFilter::is_about_run(const LogLine& line) const {
  return options_.warnings != nullptr && line.level == "warning" && !line.names_rank;
}

std::optional<std::string> LineFilter::show(std::string_view line) {
  last_shown_ = should_show(line);
  if (!last_shown_) return std::nullopt;
  const auto house = parse_house_line<LogLine>(line);
  if (!options_.show_rank || (house && (house->names_rank || is_about_run(*house))))
    return std::string(line);
  return fmt::format("[rank {}] {}", options_.rank, line);
}

}  // namespace sftrun::launch
