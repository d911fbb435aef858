#include "profile_summary.h"

#include <algorithm>
#include <functional>
#include <map>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::train {
namespace {

constexpr size_t kMaxLines = 25;

struct Total {
  int64_t calls = 0, ns = 0;
};
using Totals = std::map<std::string, Total>;

bool is_step(const ProfileEvent& event) {
  return !event.on_device && event.name.starts_with(std::string(kStepRange) + " ");
}

bool is_part(const ProfileEvent& event) {
  if (is_step(event) || event.name.starts_with(kernels::kWaitRange)) return true;
  for (size_t work = 0; work < kNumWorks; ++work)
    if (event.name == kernels::range_name(static_cast<Work>(work))) return true;
  return false;
}

/// "layer 3" and "step 7" without their numbers.
std::string kind_of(const std::string& name) {
  const size_t end = name.find_last_not_of("0123456789");
  const bool is_numbered = end != std::string::npos && end + 1 < name.size() && name[end] == ' ';
  return is_numbered ? name.substr(0, end) : name;
}

void erase_all(std::string& text, std::string_view part) {
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos;) text.erase(at, part.size());
}

/// A kernel's name without return type, parameters and the namespaces that many share:
/// "gated_forward<__nv_bfloat16, 8>". Copies keep theirs, which says whether memory is pinned.
std::string short_kernel_name(std::string name) {
  if (name.starts_with("Memcpy") || name.starts_with("Memset")) return name;
  if (name.starts_with("void ")) name.erase(0, std::string_view("void ").size());
  for (const std::string_view part :
       {"(anonymous namespace)::", "sftrun::kernels::cuda::", "at::native::"})
    erase_all(name, part);
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (name[i] == '(' && depth == 0 && i > 0) name.resize(i);
  }
  return name;
}

/// Adds to each name the time of its events that no event inside them takes.
/// @param events of one thread, which nest
Totals self_times(std::vector<const ProfileEvent*> events) {
  std::sort(events.begin(), events.end(), [](const ProfileEvent* a, const ProfileEvent* b) {
    return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
  });
  Totals totals;
  std::vector<const ProfileEvent*> open;
  for (const ProfileEvent* event : events) {
    while (!open.empty() && open.back()->end_ns <= event->begin_ns) open.pop_back();
    const int64_t ns = event->end_ns - event->begin_ns;
    if (!open.empty()) totals[kind_of(open.back()->name)].ns -= ns;
    Total& own = totals[kind_of(event->name)];
    own.ns += ns;
    ++own.calls;
    open.push_back(event);
  }
  return totals;
}

std::string table(const char* title, const Totals& totals, int64_t whole_ns, size_t most) {
  std::vector<std::pair<std::string, Total>> rows(totals.begin(), totals.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  std::string text =
      fmt::format("\n{:<48} {:>8} {:>10} {:>7}\n", title, "calls", "seconds", "share");
  for (size_t i = 0; i < std::min(rows.size(), most); ++i) {
    const auto& [name, total] = rows[i];
    const double share = whole_ns > 0 ? 100.0 * static_cast<double>(total.ns) / whole_ns : 0;
    text += fmt::format("{:<48.48} {:>8} {:>10.4f} {:>6.1f}%\n", name, total.calls,
                        static_cast<double>(total.ns) / 1e9, share);
  }
  if (rows.size() > most) text += fmt::format("and {} more\n", rows.size() - most);
  return text;
}

/// Time in which something runs on the device, whatever the streams.
int64_t busy_ns(const std::vector<const ProfileEvent*>& on_device) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const ProfileEvent* event : on_device) spans.emplace_back(event->begin_ns, event->end_ns);
  std::sort(spans.begin(), spans.end());
  int64_t busy = 0, end = 0;
  for (const auto& [begins, ends] : spans) {
    busy += std::max<int64_t>(0, ends - std::max(begins, end));
    end = std::max(end, ends);
  }
  return busy;
}

}  // namespace

std::string profile_summary(std::vector<ProfileEvent> events, int rank) {
  std::vector<const ProfileEvent*> steps, parts, operations, on_device;
  for (const ProfileEvent& event : events)
    if (is_step(event)) steps.push_back(&event);
  if (steps.empty()) return fmt::format("No step of rank {} was profiled.\n", rank);
  int64_t whole_ns = 0;
  for (const ProfileEvent* step : steps) whole_ns += step->end_ns - step->begin_ns;
  const auto is_inside = [&](const ProfileEvent& event) {
    return std::any_of(steps.begin(), steps.end(), [&](const ProfileEvent* step) {
      return event.begin_ns >= step->begin_ns && event.end_ns <= step->end_ns;
    });
  };
  Totals kernels;
  for (const ProfileEvent& event : events) {
    if (event.on_device) {
      on_device.push_back(&event);
      Total& total = kernels[short_kernel_name(event.name)];
      total.ns += event.end_ns - event.begin_ns;
      ++total.calls;
    } else if (event.thread == steps.front()->thread && is_inside(event)) {
      operations.push_back(&event);
      if (is_part(event)) parts.push_back(&event);
    }
  }
  const auto num_steps = static_cast<int64_t>(steps.size());
  std::string text =
      fmt::format("{} of rank {}, {:.4f} seconds each\n", counted(num_steps, "step"), rank,
                  static_cast<double>(whole_ns) / 1e9 / static_cast<double>(num_steps));
  text += table("part of a step", self_times(parts), whole_ns, parts.size());
  text += table("operation (host)", self_times(operations), whole_ns, kMaxLines);
  if (on_device.empty()) return text;
  text += fmt::format("\nThe GPU is busy {:.1f}% of the time.\n",
                      100.0 * static_cast<double>(busy_ns(on_device)) / whole_ns);
  return text + table("kernel or copy (GPU)", kernels, whole_ns, kMaxLines);
}

}  // namespace sftrun::train
