#include "double_array.h"

#include <algorithm>

namespace sftrun::tokenizer {

/// Places the children of each node in turn. The search position only moves forward: free slots in
/// a dense region are tried a limited number of times, then skipped.
struct DoubleArray::Builder {
  using Entry = std::pair<std::string_view, int32_t>;
  struct Task {
    uint32_t node;
    size_t begin, end, depth;  ///< entries below the node, and the bytes that led to it
  };

  void build(const std::vector<Entry>& entries) {
    reserve(0);
    nodes[0].parent = 0;
    std::vector<Task> tasks = {{0, 0, entries.size(), 0}};
    while (!tasks.empty()) {
      const Task task = tasks.back();
      tasks.pop_back();
      place_children(entries, task, tasks);
    }
  }

  void place_children(const std::vector<Entry>& entries, Task task, std::vector<Task>& tasks) {
    if (task.begin < task.end && entries[task.begin].first.size() == task.depth) {
      nodes[task.node].value = entries[task.begin].second;
      ++task.begin;
    }
    children.clear();
    for (size_t i = task.begin; i < task.end; ++i) {
      const auto byte = static_cast<uint8_t>(entries[i].first[task.depth]);
      if (children.empty() || children.back().byte != byte) children.push_back({byte, i});
    }
    // A node without children keeps a base whose slots are inside the array: no slot has it as its
    // parent.
    if (children.empty()) return;
    const uint32_t base = find_base();
    nodes[task.node].base = base;
    for (size_t i = 0; i < children.size(); ++i) {
      const uint32_t child = base + children[i].byte;
      nodes[child].parent = task.node;
      const size_t end = i + 1 < children.size() ? children[i + 1].begin : task.end;
      tasks.push_back({child, children[i].begin, end, task.depth + 1});
    }
  }

  uint32_t find_base() {
    constexpr uint32_t kTries = 64;  // before the first free slot is skipped
    constexpr uint32_t kFar = 4096;  // too far to start from there again
    const uint8_t first = children.front().byte;
    while (first_free < nodes.size() && nodes[first_free].parent != kFree) ++first_free;
    const auto begin = std::max<uint32_t>(first_free, first + 1);
    uint32_t tries = 0;
    for (uint32_t at = begin;; ++at) {
      reserve(at);
      if (nodes[at].parent != kFree) continue;
      const uint32_t base = at - first;
      reserve(base);
      const bool fits = std::all_of(children.begin(), children.end(), [&](const Child& child) {
        return nodes[base + child.byte].parent == kFree;
      });
      if (fits && at - begin > kFar) first_free = at - kTries;
      if (fits) return base;
      if (++tries > kTries) first_free = std::max(first_free + 1, at - kTries);
    }
  }

  /// Every byte after the base has a slot.
  void reserve(uint32_t base) {
    if (nodes.size() < base + 256ULL) nodes.resize(std::max<size_t>(base + 256, nodes.size() * 2));
  }

  struct Child {
    uint8_t byte;
    size_t begin;
  };
  std::vector<Node> nodes;
  std::vector<Child> children;
  uint32_t first_free = 1;
};

DoubleArray::DoubleArray(std::vector<std::pair<std::string_view, int32_t>> entries) {
  if (entries.empty()) return;
  std::sort(entries.begin(), entries.end());
  Builder builder;
  builder.build(entries);
  nodes_ = std::move(builder.nodes);
}

}  // namespace sftrun::tokenizer
