#include "collectives.h"

#include <algorithm>
#include <cstring>

#include "memory.h"
#include "reduce.h"
#include "report.h"
#include "settings.h"

namespace stand_in {
namespace {

void move(void* to, const void* from, size_t size) {
  const auto lock = lock_tables();
  copy_bytes(to, from, size, "NCCL");
}

const char* at(const void* start, size_t offset) {
  return static_cast<const char*>(start) + offset;
}
char* at(void* start, size_t offset) {
  return static_cast<char*>(start) + offset;
}

/// Of what is longer than a slot: `body(offset, size)` for each part that fits.
template <typename Body>
bool in_parts(size_t size, Body&& body) {
  for (size_t done = 0; done < size; done += kSlotBytes) {
    if (!body(done, std::min(kSlotBytes, size - done))) return false;
  }
  return true;
}

/// This rank's bytes into its slot, `use` when all have done so, and on when all have used them.
template <typename Use>
bool share(Exchange& ranks, const void* from, size_t size, Use&& use) {
  if (from) move(ranks.slot(ranks.rank()), from, size);
  if (!ranks.meet()) return false;
  use();
  return ranks.meet();
}

/// The slots of all ranks, combined in their order: every rank computes the same.
void combine_slots(Exchange& ranks, void* to, size_t size, ncclDataType_t type, ncclRedOp_t op) {
  const size_t count = size / bytes_of(type);
  std::vector<char> sum(ranks.slot(0), ranks.slot(0) + size);
  for (int rank = 1; rank < ranks.ranks(); ++rank)
    combine(sum.data(), ranks.slot(rank), count, type, op);
  if (op == ncclAvg) divide(sum.data(), count, type, ranks.ranks());
  move(to, sum.data(), size);
}

}  // namespace

bool all_reduce(Exchange& ranks, const void* from, void* to, size_t count, ncclDataType_t type,
                ncclRedOp_t op) {
  return in_parts(count * bytes_of(type), [&](size_t offset, size_t size) {
    return share(ranks, at(from, offset), size,
                 [&] { combine_slots(ranks, at(to, offset), size, type, op); });
  });
}

bool reduce(Exchange& ranks, const void* from, void* to, size_t count, ncclDataType_t type,
            ncclRedOp_t op, int root) {
  return in_parts(count * bytes_of(type), [&](size_t offset, size_t size) {
    return share(ranks, at(from, offset), size, [&] {
      if (ranks.rank() == root) combine_slots(ranks, at(to, offset), size, type, op);
    });
  });
}

bool reduce_scatter(Exchange& ranks, const void* from, void* to, size_t count, ncclDataType_t type,
                    ncclRedOp_t op) {
  const size_t bytes = count * bytes_of(type);
  for (int target = 0; target < ranks.ranks(); ++target) {
    const void* theirs = at(from, static_cast<size_t>(target) * bytes);
    if (!reduce(ranks, theirs, to, count, type, op, target)) return false;
  }
  return true;
}

bool all_gather(Exchange& ranks, const void* from, void* to, size_t bytes) {
  return in_parts(bytes, [&](size_t offset, size_t size) {
    return share(ranks, at(from, offset), size, [&] {
      for (int rank = 0; rank < ranks.ranks(); ++rank)
        move(at(to, static_cast<size_t>(rank) * bytes + offset), ranks.slot(rank), size);
    });
  });
}

bool all_to_all(Exchange& ranks, const void* from, void* to, size_t bytes) {
  for (int target = 0; target < ranks.ranks(); ++target) {
    const void* theirs = at(from, static_cast<size_t>(target) * bytes);
    const bool all_came = in_parts(bytes, [&](size_t offset, size_t size) {
      return share(ranks, at(theirs, offset), size, [&] {
        for (int rank = 0; rank < ranks.ranks() && ranks.rank() == target; ++rank)
          move(at(to, static_cast<size_t>(rank) * bytes + offset), ranks.slot(rank), size);
      });
    });
    if (!all_came) return false;
  }
  return true;
}

bool broadcast(Exchange& ranks, const void* from, void* to, size_t bytes, int root) {
  return in_parts(bytes, [&](size_t offset, size_t size) {
    const void* mine = ranks.rank() == root ? at(from, offset) : nullptr;
    return share(ranks, mine, size, [&] { move(at(to, offset), ranks.slot(root), size); });
  });
}

std::vector<char> bytes_of_message(const Transfer& message) {
  std::vector<char> bytes(message.left);
  move(bytes.data(), message.at, bytes.size());
  return bytes;
}

bool receive_all(Exchange& ranks, std::vector<Transfer>& transfers) {
  Patience patience;
  const auto step = [&](Transfer& one) {
    std::vector<char> bytes(std::min(one.left, kSlotBytes));
    const size_t moved = ranks.receive_some(one.peer, bytes.data(), bytes.size());
    if (moved) move(one.at, bytes.data(), moved);
    one.at += moved;
    one.left -= moved;
    return moved != 0;
  };
  while (!transfers.empty()) {
    bool moved = false;
    for (Transfer& one : transfers) moved = step(one) || moved;
    std::erase_if(transfers, [](const Transfer& one) { return one.left == 0; });
    if (moved) patience = Patience();
    if (ranks.broken() || ranks.ended_here() || (!moved && !patience.wait())) return false;
  }
  return true;
}

}  // namespace stand_in
