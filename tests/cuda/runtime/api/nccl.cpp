// libnccl: communicators, and collectives that move real bytes between processes. They are done
// when they are called, which waits for the other ranks: ranks that call them in different orders
// are found out. A send does not wait: the receiving rank may have other work before.
#include <nccl.h>
#include <sys/random.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "../device/collectives.h"
#include "../device/ending.h"
#include "../device/faults.h"
#include "../device/outbox.h"
#include "../device/reduce.h"
#include "../device/settings.h"
#include "../device/streams.h"
#include "entry.h"

namespace stand_in {
namespace {

/// What an ncclComm_t points to.
struct Communicator {
  Communicator(const std::string& key, int rank, int ranks)
      : exchange(key, rank, ranks), device(current_device()) {
    ++open_communicators();
  }
  ~Communicator() { --open_communicators(); }

  Exchange exchange;
  Outbox outbox{exchange};
  int device;
  std::atomic<bool> failed{
      false};  // what this rank knows: that another gave up shows when one waits
  std::atomic<bool> has_own_error{false};  // a fault that a test asked for
  /// Of the streams of collectives that do not end, since the first one.
  HangPointer hang;
};

Communicator& communicator(ncclComm_t handle) {
  require(handle != nullptr, "NCCL: no communicator");
  return *reinterpret_cast<Communicator*>(handle);
}

std::string key_of(const ncclUniqueId& id) {
  std::string key;
  for (int i = 0; i < 16; ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    key += {kDigits[(id.internal[i] >> 4) & 15], kDigits[id.internal[i] & 15]};
  }
  return key;
}

/// With a fault that a test asked for, collectives that do not end leave their stream waiting, as
/// NCCL's do.
bool has_faults() {
  return !settings().fault.kind.empty();
}

void hang_from_here(Communicator& of, cudaStream_t handle) {
  const auto lock = lock_tables();
  if (!of.hang) of.hang = std::make_shared<Hang>();
  Stream& stream = stream_of(handle, "NCCL");
  if (!hangs(stream.hang)) stream.hang = of.hang;
}

/// False: the call is not made. What its stream waits for does not come, or it is the one with the
/// fault.
bool is_made(Communicator& of, cudaStream_t handle) {
  const Happens what = next_call();
  if (what == Happens::kHostHangs) {
    while (!of.exchange.ended_here()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return false;
  }
  if (what == Happens::kDeviceHangs) {  // a kernel after it, which no abort of NCCL ends
    const auto lock = lock_tables();
    stream_of(nullptr, "NCCL").hang = std::make_shared<Hang>();
    return true;
  }
  if (what == Happens::kError) of.has_own_error = true;
  if (what != Happens::kNothing || of.hang) {
    hang_from_here(of, handle);
    return false;
  }
  const auto lock = lock_tables();
  return !hangs(stream_of(handle, "NCCL").hang);
}

/// Where a fault happened the stream waits, and the host goes on.
bool came_or_hangs(bool came, Communicator& of, cudaStream_t stream) {
  if (came || !has_faults() || !has_fault_happened()) return came;
  hang_from_here(of, stream);
  return true;
}

// ---- Groups: calls between ncclGroupStart and ncclGroupEnd are done at the end.
struct Group {
  int depth = 0;
  std::vector<std::function<bool()>> collectives;
  struct Message {
    Communicator* of;
    Transfer transfer;
    cudaStream_t stream;
  };
  std::vector<Message> transfers;
};
thread_local Group group;

ncclResult_t result(bool came) {
  return came ? ncclSuccess : ncclRemoteError;
}

bool do_transfers() {
  auto pending = std::exchange(group.transfers, {});
  bool came = true;
  while (!pending.empty()) {
    Communicator* const one = pending.front().of;
    const cudaStream_t stream = pending.front().stream;
    std::vector<Transfer> received;
    for (const auto& [owner, transfer, on] : pending) {
      if (owner != one) continue;
      if (transfer.sends) {
        one->outbox.post(transfer.peer, bytes_of_message(transfer));
      } else {
        received.push_back(transfer);
      }
    }
    std::erase_if(pending, [one](const auto& each) { return each.of == one; });
    if (came_or_hangs(receive_all(one->exchange, received), *one, stream)) continue;
    one->failed = true;
    came = false;
  }
  return came;
}

ncclResult_t end_group() {
  bool came = true;
  for (const auto& call : std::exchange(group.collectives, {})) came = call() && came;
  return result(do_transfers() && came);
}

/// One call, as logged.
struct Call {
  const char* kind;
  const void* from;
  void* to;
  size_t from_bytes, to_bytes;
  size_t count;
  ncclDataType_t type;
  std::string detail;  // the operation, the root or the peer
};

void check_buffer(const void* buffer, size_t bytes, const Communicator& of, const char* kind) {
  if (buffer == nullptr || bytes == 0) return;
  require_live(buffer, bytes, text("NCCL ", kind));
  require(device_of(buffer) == of.device, "NCCL ", kind, ": a buffer of device ",
          device_of(buffer).value_or(-1), ", a communicator of device ", of.device);
}

/// True if the stream is captured: then `run` is part of the graph.
bool logged(const Call& call, const Communicator& of, cudaStream_t handle,
            const std::function<bool()>& run) {
  const auto lock = lock_tables();
  check_buffer(call.from, call.from_bytes, of, call.kind);
  check_buffer(call.to, call.to_bytes, of, call.kind);
  Stream& stream = stream_of_current_device(handle, call.kind);
  const bool captured = recorded(stream, {"nccl", [run] { run(); }});
  Event(captured ? "captured_nccl" : "nccl")
      .with("kind", call.kind)
      .with("detail", call.detail)
      .with("count", call.count)
      .with("type", name_of(call.type))
      .with("bytes", std::max(call.from_bytes, call.to_bytes))
      .with("buffer_device", of.device)
      .with("device", current_device())
      .with("stream", stream.id)
      .with("stream_device", stream.device);
  return captured;
}

ncclResult_t collective(const Call& call, ncclComm_t handle, cudaStream_t stream,
                        const std::function<bool(Exchange&)>& body) {
  Communicator& of = communicator(handle);
  const std::string what =
      text(call.kind, " of ", call.count, " ", name_of(call.type), " ", call.detail);
  const auto run = [&of, what, body, stream] {
    const bool came = came_or_hangs(of.exchange.agree(what) && body(of.exchange), of, stream);
    if (!came) of.failed = true;
    return came;
  };
  if (logged(call, of, stream, run)) return ncclSuccess;
  if (has_faults() && !is_made(of, stream)) return ncclSuccess;
  if (group.depth > 0) {
    group.collectives.push_back(run);
    return ncclSuccess;
  }
  return result(run());
}

ncclResult_t point_to_point(const Call& call, ncclComm_t handle, cudaStream_t stream,
                            const Transfer& transfer) {
  Communicator& of = communicator(handle);
  const auto refuse = []() -> bool { fail("NCCL send and receive are not captured here"); };
  if (logged(call, of, stream, refuse)) return ncclSuccess;
  if (has_faults() && !is_made(of, stream)) return ncclSuccess;
  if (transfer.left != 0) group.transfers.push_back({&of, transfer, stream});
  return group.depth > 0 ? ncclSuccess : result(do_transfers());
}

ncclResult_t start(ncclComm_t* handle, int ranks, const ncclUniqueId& id, int rank) {
  require_chosen_device("ncclCommInitRank");
  auto made = std::make_unique<Communicator>(key_of(id), rank, ranks);
  Event("nccl_init").with("rank", rank).with("ranks", ranks).with("device", made->device);
  if (made->exchange.broken()) return ncclRemoteError;
  *handle = reinterpret_cast<ncclComm_t>(made.release());
  return ncclSuccess;
}

ncclResult_t end(ncclComm_t handle, const char* how) {
  if (handle == nullptr) return ncclSuccess;  // as NCCL has it
  Communicator& known = communicator(handle);
  Event(how).with("device", known.device);
  delete &known;
  return ncclSuccess;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

// ---- Communicators.
STAND_IN_API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
STAND_IN_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  return getrandom(id->internal, 16, 0) == 16 ? ncclSuccess : ncclSystemError;
}
STAND_IN_API ncclResult_t ncclCommInitRank(ncclComm_t* handle, int ranks, ncclUniqueId id,
                                           int rank) {
  return start(handle, ranks, id, rank);
}
STAND_IN_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int ranks, ncclUniqueId id,
                                                 int rank, ncclConfig_t*) {
  return start(handle, ranks, id, rank);
}
STAND_IN_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* handle, int ranks, int rank, int,
                                                   ncclUniqueId* ids, ncclConfig_t*) {
  return start(handle, ranks, *ids, rank);
}
STAND_IN_API ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  Event("nccl_finalize").with("device", communicator(handle).device);
  return ncclSuccess;
}
STAND_IN_API ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return end(handle, "nccl_destroy");
}
STAND_IN_API ncclResult_t ncclCommAbort(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  Communicator& known = communicator(handle);
  if (!has_faults()) {
    known.exchange.give_up();
    return end(handle, "nccl_abort");
  }
  // Another thread may be in a call of it, which ends now: it stays in memory.
  known.exchange.end_here();
  if (known.hang) known.hang->is_over = true;
  Event("nccl_abort").with("device", known.device);
  --open_communicators();
  return ncclSuccess;
}
STAND_IN_API ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  if (handle == nullptr && has_faults()) return ncclInvalidArgument;  // it was aborted
  const Communicator& known = communicator(handle);
  *error = known.has_own_error ? ncclSystemError : known.failed ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
STAND_IN_API ncclResult_t ncclCommCount(const ncclComm_t handle, int* ranks) {
  *ranks = communicator(handle).exchange.ranks();
  return ncclSuccess;
}
STAND_IN_API ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  *rank = communicator(handle).exchange.rank();
  return ncclSuccess;
}
STAND_IN_API ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  *device = communicator(handle).device;
  return ncclSuccess;
}
STAND_IN_API ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
STAND_IN_API ncclResult_t ncclGroupEnd() {
  require(group.depth > 0, "ncclGroupEnd without ncclGroupStart");
  return --group.depth > 0 ? ncclSuccess : end_group();
}
STAND_IN_API const char* ncclGetErrorString(ncclResult_t error) {
  switch (error) {
    case ncclSuccess:
      return "no error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    default:
      return "an error of the stand-in's NCCL";
  }
}
STAND_IN_API const char* ncclGetLastError(ncclComm_t) {
  return "";
}

// ---- Collectives.
STAND_IN_API ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                                        ncclDataType_t type, ncclRedOp_t op, ncclComm_t handle,
                                        cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  return collective({"all_reduce", from, to, bytes, bytes, count, type, name_of(op)}, handle,
                    stream,
                    [=](Exchange& ranks) { return all_reduce(ranks, from, to, count, type, op); });
}
STAND_IN_API ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, int root, ncclComm_t handle,
                                     cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  const bool here = communicator(handle).exchange.rank() == root;
  return collective(
      {"reduce", from, to, bytes, here ? bytes : 0, count, type, text(name_of(op), root)}, handle,
      stream, [=](Exchange& ranks) { return reduce(ranks, from, to, count, type, op, root); });
}
STAND_IN_API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count,
                                            ncclDataType_t type, ncclRedOp_t op, ncclComm_t handle,
                                            cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  const auto ranks = static_cast<size_t>(communicator(handle).exchange.ranks());
  return collective(
      {"reduce_scatter", from, to, ranks * bytes, bytes, count, type, name_of(op)}, handle, stream,
      [=](Exchange& shared) { return reduce_scatter(shared, from, to, count, type, op); });
}
STAND_IN_API ncclResult_t ncclAllGather(const void* from, void* to, size_t count,
                                        ncclDataType_t type, ncclComm_t handle,
                                        cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  const auto ranks = static_cast<size_t>(communicator(handle).exchange.ranks());
  return collective({"all_gather", from, to, bytes, ranks * bytes, count, type, ""}, handle, stream,
                    [=](Exchange& shared) { return all_gather(shared, from, to, bytes); });
}
STAND_IN_API ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count,
                                       ncclDataType_t type, ncclComm_t handle,
                                       cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  const auto ranks = static_cast<size_t>(communicator(handle).exchange.ranks());
  return collective({"all_to_all", from, to, ranks * bytes, ranks * bytes, count, type, ""}, handle,
                    stream, [=](Exchange& shared) { return all_to_all(shared, from, to, bytes); });
}
STAND_IN_API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count,
                                        ncclDataType_t type, int root, ncclComm_t handle,
                                        cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  const bool here = communicator(handle).exchange.rank() == root;
  return collective({"broadcast", from, to, here ? bytes : 0, bytes, count, type, text(root)},
                    handle, stream,
                    [=](Exchange& ranks) { return broadcast(ranks, from, to, bytes, root); });
}
STAND_IN_API ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root,
                                    ncclComm_t handle, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, handle, stream);
}

// ---- Messages.
STAND_IN_API ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                                   ncclComm_t handle, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  char* data = static_cast<char*>(const_cast<void*>(from));
  return point_to_point({"send", from, nullptr, bytes, 0, count, type, text(peer)}, handle, stream,
                        {true, peer, data, bytes});
}
STAND_IN_API ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer,
                                   ncclComm_t handle, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(type);
  return point_to_point({"receive", nullptr, to, 0, bytes, count, type, text(peer)}, handle, stream,
                        {false, peer, static_cast<char*>(to), bytes});
}

// ---- Memory.
STAND_IN_API ncclResult_t ncclMemAlloc(void** address, size_t size) {
  const auto lock = lock_tables();
  *address = allocate(current_device(), size);
  return *address ? ncclSuccess : ncclUnhandledCudaError;
}
STAND_IN_API ncclResult_t ncclMemFree(void* address) {
  const auto lock = lock_tables();
  deallocate(address, "ncclMemFree");
  return ncclSuccess;
}
