#include "sftrun/launch/running.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "parse_int.h"
#include "sftrun/core/strings.h"

namespace sftrun::launch {
namespace fs = std::filesystem;
namespace {

std::string text_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct ProcessState {
  RunningProcess process;
  int parent = 0;
  std::string run_dir;  ///< whose lock it holds; empty: none
};

/// The directory of a run's lock among the process's open files.
std::string locked_directory(const fs::path& process) {
  std::error_code code;
  fs::directory_iterator entry(process / "fd", code);
  for (; !code && entry != fs::directory_iterator(); entry.increment(code)) {
    std::error_code ignored;
    const fs::path target = fs::read_symlink(entry->path(), ignored);
    const std::string name = target.filename().string();
    if (name == ".lock" || name.starts_with(".lock-")) return target.parent_path().string();
  }
  return {};
}

/// nullopt: not one of this program's, or already gone.
std::optional<ProcessState> state_of(const fs::path& process, int pid) {
  std::error_code ignored;
  const std::string program = fs::read_symlink(process / "exe", ignored).filename().string();
  // A program that was replaced by a newer build: "sftrun (deleted)".
  if (program != "sftrun" && !program.starts_with("sftrun ")) return std::nullopt;
  ProcessState state{.process = {.pid = pid}};
  for (const std::string& line : split(text_of_file(process / "status"), '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view value = trim(std::string_view(line).substr(colon + 1));
    const auto number = parse_int(value.substr(0, value.find(' ')));
    if (!number) continue;
    if (line.starts_with("PPid:")) state.parent = static_cast<int>(*number);
    if (line.starts_with("VmRSS:"))
      state.process.resident_bytes = static_cast<uint64_t>(*number) << 10;
  }
  for (const std::string& variable : split(text_of_file(process / "environ"), '\0')) {
    if (!variable.starts_with("RANK=")) continue;
    if (const auto rank = parse_int(std::string_view(variable).substr(5)))
      state.process.rank = static_cast<int>(*rank);
  }
  state.run_dir = locked_directory(process);
  return state;
}

/// The process with a lock from which this one descends; 0: none.
int owner_of(const ProcessState& state, const std::map<int, ProcessState>& all) {
  const ProcessState* current = &state;
  for (size_t steps = 0; steps < all.size(); ++steps) {
    if (!current->run_dir.empty()) return current->process.pid;
    const auto parent = all.find(current->parent);
    if (parent == all.end()) return 0;
    current = &parent->second;
  }
  return 0;
}

}  // namespace

std::vector<RunningRun> running_runs(const fs::path& proc) {
  std::map<int, ProcessState> all;
  std::error_code code;
  fs::directory_iterator entry(proc, code);
  for (; !code && entry != fs::directory_iterator(); entry.increment(code)) {
    const auto pid = parse_int(entry->path().filename().string());
    if (!pid) continue;
    if (auto state = state_of(entry->path(), static_cast<int>(*pid)))
      all.emplace(static_cast<int>(*pid), std::move(*state));
  }
  // A launcher's helper processes have inherited its open files.
  for (auto& [pid, state] : all) {
    const auto parent = all.find(state.parent);
    if (parent != all.end() && parent->second.run_dir == state.run_dir) state.run_dir.clear();
  }
  std::map<int, RunningRun> runs;
  for (const auto& [pid, state] : all)
    if (!state.run_dir.empty()) runs[pid] = {state.run_dir, {state.process}};
  for (const auto& [pid, state] : all) {
    const int owner = owner_of(state, all);
    if (owner != 0 && owner != pid && state.process.rank)
      runs[owner].processes.push_back(state.process);
  }
  std::vector<RunningRun> found;
  for (auto& [pid, run] : runs) {
    std::sort(run.processes.begin() + 1, run.processes.end(),
              [](const RunningProcess& a, const RunningProcess& b) { return a.rank < b.rank; });
    found.push_back(std::move(run));
  }
  return found;
}

}  // namespace sftrun::launch
