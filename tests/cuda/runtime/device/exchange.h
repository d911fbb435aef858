#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

/// Memory that the ranks of a communicator share, and how they meet over it.
namespace stand_in {

constexpr int kMaxRanks = 16;
constexpr size_t kSlotBytes = size_t{256} << 10;

class Exchange {
 public:
  /// Returns when all ranks are there. `key` names the communicator, the same for all.
  Exchange(const std::string& key, int rank, int ranks);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  bool broken() const;  ///< a rank gave up, or did not come in time
  void give_up();
  /// Of this rank alone: its calls end, and the others are not told.
  void end_here() { ended_here_ = true; }
  bool ended_here() const { return ended_here_; }

  /// All ranks announce what they are about to do, which must be the same. False if one is lost.
  bool agree(const std::string& what);
  /// False if a rank does not come in time.
  bool meet();
  /// Of each rank, to be written by it alone.
  char* slot(int rank) const;

  /// Bytes from one rank to another; as many as there is room for, or as have come.
  size_t send_some(int to, const char* data, size_t size);
  size_t receive_some(int from, char* data, size_t size);

 private:
  struct Mailbox;
  struct Shared;
  Mailbox& mailbox(int from, int to) const;

  std::string name_;
  int rank_, ranks_;
  Shared* shared_ = nullptr;
  std::atomic<bool> ended_here_{false};
};

/// Waits a little, less at first; false when `seconds` are over.
class Patience {
 public:
  explicit Patience(double seconds);
  /// Waits for the other ranks: `nccl_seconds`, or a moment after a fault.
  Patience();
  bool wait();

 private:
  int turns_ = 0;
  double until_;
  bool looks_for_faults_ = false;
};

}  // namespace stand_in
