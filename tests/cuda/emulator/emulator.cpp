#include "emulator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1  // as GCC says it
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulator {
namespace {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 256 << 10;
constexpr unsigned kMaxThreads = 1024, kMaxBlocksBeside = 65535;  // of a block; of a grid's y, z
constexpr size_t kMaxSharedBytes = 99 << 10;                      // sm_86, sm_89 and sm_120

#ifdef __x86_64__
/// Where a fibre stands: its stack's top, which holds the registers that a call preserves.
struct Context {
  void* stack_top = nullptr;
};

// ucontext would do the same with two system calls a switch, which takes ten times as long.
extern "C" void emulator_switch(void** save_top_to, void* top);
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch,@function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch,.-emulator_switch
)");

void prepare(Context& context, char* stack, void (*entry)()) {
  constexpr int kRegisters = 6, kAlignment = 16;
  const auto end = reinterpret_cast<uintptr_t>(stack + kStackBytes) / kAlignment * kAlignment;
  auto** top = reinterpret_cast<void**>(end);
  *--top = nullptr;  // the return address of `entry`, which does not return
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kRegisters; ++i) *--top = nullptr;
  context.stack_top = top;
}
void switch_to(Context& from, Context& to) {
  emulator_switch(&from.stack_top, to.stack_top);
}
/// Where on a stack the calls begin that have not returned.
char* lowest_frame(const Context& context, char* stack) {
  auto* top = static_cast<char*>(context.stack_top);
  return top != nullptr ? top : stack + kStackBytes;
}
#else
using Context = ucontext_t;
void prepare(Context& context, char* stack, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
void switch_to(Context& from, Context& to) {
  swapcontext(&from, &to);
}
char* lowest_frame(const Context& /*context*/, char* stack) {
  return stack;
}
#endif

/// Frames that were left by a switch and not by a return keep AddressSanitizer's marks; those of
/// calls that returned do not. The marks of a whole stack would take half of a small kernel's time.
void forget_frames(const Context& context, char* stack) {
  char* lowest = lowest_frame(context, stack);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(lowest, static_cast<size_t>(stack + kStackBytes - lowest));
#else
  (void)lowest;
#endif
}

/// Waiting for some number of threads, again and again.
struct Barrier {
  unsigned expected = 0, arrived = 0;
  uint64_t round = 0;

  void close() {
    arrived = 0;
    ++round;
  }
  bool is_complete() const { return expected > 0 && arrived == expected; }
};

struct Warp {
  Barrier barrier;
  void* lanes[kWarp] = {};                        // what they hand over; nullptr: not there
  void (*compute)(void* const* lanes) = nullptr;  // for all of them, when the last has come

  void close() {
    if (compute != nullptr) compute(lanes);
    compute = nullptr;
    std::fill(std::begin(lanes), std::end(lanes), nullptr);
    barrier.close();
  }
};

/// 16 bytes; from nowhere: zeros.
struct Copy {
  void* to;
  const void* from;
};

struct Fibre {
  Context context;
  Index index;
  bool has_ended = false;
  const Barrier* waits_at = nullptr;  // for the end of `round`; nullptr: for nothing
  uint64_t round = 0;
  std::deque<std::vector<Copy>> copies;  // groups that have ended
  std::vector<Copy> open_copies;         // of the group that has not
};

using Turns = std::vector<size_t>;

/// The block that runs, and the grid it is of.
struct State {
  Context scheduler;
  Fibre* current = nullptr;
  Index block, block_size, grid;
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<Fibre> fibres;
  std::vector<char> stacks;
  std::unique_ptr<char, decltype(&std::free)> shared{nullptr, std::free};  // of the block
  size_t shared_bytes = 0;
  const std::function<void()>* thread = nullptr;
  Turns blocks, warp_turns, lane_turns;  // kept: a warp's lanes take turns at every barrier
};

Order chosen_order = Order::kForward;
MemoryGate memory_gate;
LaunchRecorder launch_recorder;
State* state = nullptr;  // of the launch that runs; launches of several threads take turns

/// Comes to a barrier, and waits until all have come. `of` closes: the barrier, or its warp.
template <typename Closed>
void wait_at(Barrier& barrier, Closed& of) {
  const uint64_t round = barrier.round;
  ++barrier.arrived;
  if (barrier.is_complete()) return of.close();
  Fibre& fibre = *state->current;
  fibre.waits_at = &barrier;
  fibre.round = round;
  switch_to(fibre.context, state->scheduler);
}

template <typename Closed>
void leave(Barrier& barrier, Closed& of) {
  --barrier.expected;
  if (barrier.is_complete()) of.close();
}

Warp& own_warp() {
  return state->warps[state->current->index.x / kWarp];
}

/// Whether it has a turn; one that waits does not, and is not switched to.
bool can_go_on(Fibre& fibre) {
  if (fibre.has_ended) return false;
  if (fibre.waits_at != nullptr && fibre.waits_at->round == fibre.round) return false;
  fibre.waits_at = nullptr;
  return true;
}

void run_thread() {
  (*state->thread)();
  Fibre& fibre = *state->current;
  fibre.has_ended = true;
  leave(own_warp().barrier, own_warp());
  leave(state->barrier, state->barrier);
  switch_to(fibre.context, state->scheduler);
}

const Turns& in_order(Turns& order, size_t count, std::mt19937& random) {
  order.resize(count);
  std::iota(order.begin(), order.end(), size_t{0});
  if (chosen_order == Order::kBackward) std::reverse(order.begin(), order.end());
  if (chosen_order == Order::kRandom) std::shuffle(order.begin(), order.end(), random);
  return order;
}

void begin_block(State& of, unsigned threads) {
  of.barrier = {.expected = threads};
  of.warps.assign((threads + kWarp - 1) / kWarp, {});
  if (of.shared_bytes > 0) std::memset(of.shared.get(), 0xff, of.shared_bytes);
  for (unsigned i = 0; i < threads; ++i) {
    ++of.warps[i / kWarp].barrier.expected;
    char* stack = of.stacks.data() + i * kStackBytes;
    forget_frames(of.fibres[i].context, stack);
    of.fibres[i].index = {i, 0, 0};
    of.fibres[i].has_ended = false;
    of.fibres[i].waits_at = nullptr;
    of.fibres[i].copies.clear();
    of.fibres[i].open_copies.clear();
    prepare(of.fibres[i].context, stack, run_thread);
  }
}

/// One turn for each thread of a warp; whether any did more than wait.
bool run_lanes(State& of, unsigned warp, unsigned threads, std::mt19937& random) {
  const unsigned first = warp * kWarp, lanes = std::min(kWarp, threads - first);
  bool has_moved = false;
  for (const size_t lane : in_order(of.lane_turns, lanes, random)) {
    Fibre& fibre = of.fibres[first + lane];
    if (!can_go_on(fibre)) continue;
    has_moved = true;
    of.current = &fibre;
    switch_to(of.scheduler, fibre.context);
  }
  return has_moved;
}

/// A warp goes on for as long as it does not wait for others, as fast ones do on a card: what it
/// writes too early, the others read. In random order it may fall behind anywhere.
bool run_warp(State& of, unsigned warp, unsigned threads, std::mt19937& random) {
  constexpr unsigned kOneIn = 4;
  bool has_moved = false;
  while (run_lanes(of, warp, threads, random)) {
    has_moved = true;
    if (chosen_order == Order::kRandom && random() % kOneIn == 0) break;
  }
  return has_moved;
}

void run_block(State& of, unsigned threads, std::mt19937& random) {
  begin_block(of, threads);
  while (of.barrier.expected > 0) {
    bool has_moved = false;
    for (const size_t warp : in_order(of.warp_turns, of.warps.size(), random))
      has_moved |= run_warp(of, static_cast<unsigned>(warp), threads, random);
    if (!has_moved) fail("the threads of a block wait for each other for ever");
  }
}

/// As many bytes as a launch asks for, where AddressSanitizer sees one more.
void reserve_shared(State& of, size_t bytes) {
  constexpr size_t kAlignment = 128;
  of.shared_bytes = bytes;
  void* memory = nullptr;
  if (bytes > 0 && posix_memalign(&memory, kAlignment, bytes) != 0) fail("out of memory");
  of.shared.reset(static_cast<char*>(memory));
}

void require_possible(dim3 grid, unsigned threads, size_t shared_bytes) {
  if (shared_bytes > kMaxSharedBytes) {
    std::fprintf(stderr, "emulator: %zu bytes of shared memory\n", shared_bytes);
    fail("the card refuses this launch");
  }
  const bool is_possible = threads > 0 && threads <= kMaxThreads && grid.x > 0 && grid.y > 0 &&
                           grid.z > 0 && grid.x <= INT32_MAX && grid.y <= kMaxBlocksBeside &&
                           grid.z <= kMaxBlocksBeside;
  if (is_possible) return;
  std::fprintf(stderr, "emulator: a grid of %u x %u x %u blocks of %u threads\n", grid.x, grid.y,
               grid.z, threads);
  fail("the card refuses this launch");
}

struct Exchange {
  uint64_t own;
  unsigned from;
  uint64_t received;
};

void exchange_all(void* const* lanes) {
  for (unsigned i = 0; i < kWarp; ++i) {
    if (lanes[i] == nullptr) continue;
    auto& to = *static_cast<Exchange*>(lanes[i]);
    const void* from = lanes[to.from % kWarp];
    if (from == nullptr)
      fail("a shuffle from a lane that has ended, or that the block does not have");
    to.received = static_cast<const Exchange*>(from)->own;
  }
}

class OpenMemory {
 public:
  OpenMemory() {
    if (memory_gate.open) memory_gate.open();
  }
  ~OpenMemory() {
    if (memory_gate.close) memory_gate.close();
  }
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

}  // namespace

void set_order(Order order) {
  chosen_order = order;
}
void set_memory_gate(MemoryGate gate) {
  memory_gate = gate;
}

void set_launch_recorder(LaunchRecorder recorder) {
  launch_recorder = recorder;
}

void fail(const char* what) {
  std::fprintf(stderr, "emulator: %s\n", what);
  std::abort();
}

namespace {

void run_now(dim3 grid, unsigned threads, const std::function<void()>& thread,
             size_t shared_bytes) {
  static std::mutex mutex;
  static State of_all;  // stacks are large: kept from launch to launch
  const std::lock_guard lock(mutex);
  const OpenMemory open;
  state = &of_all;
  if (state->fibres.size() < threads) {
    state->fibres = std::vector<Fibre>(threads);
    state->stacks = std::vector<char>(threads * kStackBytes);
  }
  reserve_shared(*state, shared_bytes);
  state->thread = &thread;
  state->grid = {grid.x, grid.y, grid.z};
  state->block_size = {threads, 1, 1};
  std::mt19937 random(7);
  for (const size_t i : in_order(state->blocks, size_t{grid.x} * grid.y * grid.z, random)) {
    state->block = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                    static_cast<unsigned>(i / grid.x / grid.y)};
    run_block(*state, threads, random);
  }
}

}  // namespace

void run(dim3 grid, unsigned threads, void* stream, const std::function<void()>& thread,
         size_t shared_bytes) {
  require_possible(grid, threads, shared_bytes);
  if (launch_recorder.is_captured != nullptr && launch_recorder.is_captured(stream))
    launch_recorder.record(stream, [=] { run_now(grid, threads, thread, shared_bytes); });
  else
    run_now(grid, threads, thread, shared_bytes);
}

const Index& thread_index() {
  return state->current->index;
}
const Index& block_index() {
  return state->block;
}
const Index& block_size() {
  return state->block_size;
}
const Index& grid_size() {
  return state->grid;
}

unsigned lane() {
  return state->current->index.x % kWarp;
}

void synchronise_block() {
  wait_at(state->barrier, state->barrier);
}

void together_in_warp(void* own, void (*compute)(void* const* lanes)) {
  Warp& warp = own_warp();
  if (warp.compute != nullptr && warp.compute != compute)
    fail("lanes of a warp wait for each other at different instructions");
  warp.compute = compute;
  warp.lanes[lane()] = own;
  wait_at(warp.barrier, warp);
}

uint64_t exchange_in_warp(uint64_t own, unsigned from) {
  Exchange exchange{own, from, 0};
  together_in_warp(&exchange, exchange_all);
  return exchange.received;
}

// Half of the time of the attention kernels' tests would go into AddressSanitizer's questions about these numbers.
__attribute__((no_sanitize("address"))) void add_products(float (&sums)[16][8],
                                                          const float (&a)[16][16],
                                                          const float (&b)[16][8]) {
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
  }
}

char* dynamic_shared_memory() {
  return state->shared.get();
}

void copy_async(void* to, const void* from, bool is_there) {
  constexpr uintptr_t kBytes = 16;
  if (reinterpret_cast<uintptr_t>(to) % kBytes != 0 ||
      reinterpret_cast<uintptr_t>(from) % kBytes != 0)
    fail("a copy to shared memory is not aligned");
  state->current->open_copies.push_back({to, is_there ? from : nullptr});
}

void end_copies() {
  state->current->copies.push_back(std::move(state->current->open_copies));
  state->current->open_copies.clear();
}

void wait_for_copies(size_t pending_groups) {
  constexpr size_t kBytes = 16;
  for (auto& groups = state->current->copies; groups.size() > pending_groups; groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      if (copy.from == nullptr)
        std::memset(copy.to, 0, kBytes);
      else
        std::memcpy(copy.to, copy.from, kBytes);
    }
  }
}

}  // namespace emulator
