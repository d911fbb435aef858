#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Collectives on tensors between the ranks of a group.
namespace sftrun::parallel {

/// Calls of one kind of collective by a rank, and the bytes of the tensors that it passed: of an
/// all-gather its own part, of a reduce-scatter or all-to-all the whole input, of a broadcast only at the root.
struct CollectiveCount {
  int64_t calls = 0;
  uint64_t bytes = 0;
};
struct CollectiveCounts {
  CollectiveCount all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv;
};

/// A collective that was started. Its tensors must stay alive, and must not be read or written,
/// until `wait`.
class StartedCollective {
 public:
  StartedCollective() = default;  ///< one that is complete
  explicit StartedCollective(std::function<void()> wait) : wait_(std::move(wait)) {}
  /// Waits for the result; does nothing the second time. With NCCL the current stream waits, not the
  /// host.   @throws CommError
  void wait() {
    if (const auto wait = std::exchange(wait_, nullptr)) wait();
  }
  /// Makes another stream wait, too; the stream of the passes still needs `wait`.
  void wait_beside() const {
    if (wait_) wait_();
  }

 private:
  std::function<void()> wait_;
};

/// Ranks that communicate with each other: all ranks of a run, or those of one axis of the mesh.
/// Copies share the group. All of its ranks must make the same calls in the same order. Not
/// thread-safe. Functions throw CommError when another rank stopped or the network broke.
class Group {
 public:
  /// A group of one rank: collectives return their input; no network is used.
  Group();
  ~Group();
  Group(const Group&);
  Group& operator=(const Group&);
  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;

  int rank() const;  ///< in this group
  int size() const;
  const std::vector<int>& ranks() const;  ///< of the run, ascending

  /// Starts an in-place sum of `tensor` over all ranks; the result is bit-identical on every rank.
  /// The tensor must stay alive until `wait_all`.
  void all_reduce_async(const at::Tensor& tensor);
  void wait_all();
  /// Waits for the sum. With NCCL the current stream waits, not the host.
  void all_reduce(const at::Tensor& tensor);
  /// @param out [size * n], contiguous, receives the parts of all ranks in rank order
  /// @param part [n] of this rank, contiguous; may be its own place in `out`
  void all_gather_into(const at::Tensor& out, const at::Tensor& part);
  StartedCollective all_gather_into_async(const at::Tensor& out, const at::Tensor& part);
  /// Sums `in` over all ranks; each rank receives its part of the sum.
  /// @param out [n]   @param in [size * n], contiguous
  void reduce_scatter_into(const at::Tensor& out, const at::Tensor& in);
  StartedCollective reduce_scatter_into_async(const at::Tensor& out, const at::Tensor& in);
  /// Sends to each rank its rows of `in`, and receives those for this rank, in rank order.
  /// @param out, in [rows, …], contiguous, of one dtype   @param out_rows, in_rows [size]
  void all_to_all(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& out_rows,
                  const std::vector<int64_t>& in_rows);
  /// Copies `tensor` of the rank `root` of this group to all ranks.
  void broadcast(const at::Tensor& tensor, int root);
  /// Point to point; `tag` distinguishes messages between the same two ranks (Gloo only: NCCL keeps
  /// their order).   @param to, from ranks of this group
  void send(const at::Tensor& tensor, int to, int tag = 0);
  /// The tensor is kept until `wait`; others must not write it until then.
  StartedCollective send_async(const at::Tensor& tensor, int to, int tag = 0);
  void receive(const at::Tensor& tensor, int from, int tag = 0);

 private:
  friend class Communicator;
  struct State;
  explicit Group(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace sftrun::parallel
