#include "emulator.h"

#include <cuda_bf16.h>
#include <gtest/gtest.h>
#include <mma.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "cuda/device.cuh"
#include "tensor_cores.h"

// Whether the tests of CUDA kernels on the host would see what they are there for.
namespace sftrun::kernels::cuda::test {
namespace {

using emulator::Order;
using emulator::run;

constexpr Order kOrders[] = {Order::kForward, Order::kBackward, Order::kRandom};

/// What a kernel leaves in each order.
template <typename Kernel>
std::vector<std::vector<int>> in_orders(dim3 grid, unsigned threads, size_t results,
                                        const Kernel& kernel) {
  std::vector<std::vector<int>> all;
  for (const Order order : kOrders) {
    emulator::set_order(order);
    std::vector<int> out(results, -1);
    run(grid, threads, nullptr, [&] { kernel(out.data()); });
    all.push_back(out);
  }
  emulator::set_order(Order::kForward);
  return all;
}

// ---- What a correct kernel may count on.

TEST(Emulator, EveryThreadOfEveryBlockRunsOnce) {
  const auto all = in_orders(dim3(3, 2, 4), 33, 3 * 2 * 4 * 33, [](int* out) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    ++out[block * blockDim.x + threadIdx.x];
  });
  for (const auto& out : all) EXPECT_EQ(out, std::vector<int>(3 * 2 * 4 * 33, 0));
}

/// Each thread reads what its neighbour wrote.
template <bool kWaits>
void read_neighbour(int* out) {
  __shared__ int values[64];
  const auto i = static_cast<int>(threadIdx.x), next = (i + 1) % 64;
  values[i] = -7;
  __syncthreads();
  values[i] = i;
  if constexpr (kWaits) __syncthreads();
  out[i] = values[next];
}

TEST(Emulator, BarriersMakeTheOrderMeanNothing) {
  const auto all = in_orders(1, 64, 64, read_neighbour<true>);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(all[0][static_cast<size_t>(i)], (i + 1) % 64);
  EXPECT_EQ(all[1], all[0]);
  EXPECT_EQ(all[2], all[0]);
}

TEST(Emulator, AMissingBarrierShowsInTheOrder) {
  const auto all = in_orders(1, 64, 64, read_neighbour<false>);
  EXPECT_NE(all[1], all[0]);
  EXPECT_NE(all[2], all[0]);
}

/// Sums over the block of two numbers, one after the other, through the same shared memory.
template <bool kWaits>
void sum_twice(int* out) {
  __shared__ int of_warp[2];
  for (int number = 1; number < 3; ++number) {
    int sum = number;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
    if constexpr (kWaits) __syncthreads();  // the sums before have been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    out[threadIdx.x] += of_warp[0] + of_warp[1];
  }
}

/// A warp that is ahead of another by all but a barrier.
TEST(Emulator, AWarpThatIsAheadShowsInTheOrder) {
  for (const auto& out : in_orders(1, 64, 64, sum_twice<true>))
    EXPECT_EQ(out, std::vector<int>(64, 64 + 128 - 1));
  EXPECT_NE(in_orders(1, 64, 64, sum_twice<false>)[0], std::vector<int>(64, 64 + 128 - 1));
}

TEST(Emulator, ShufflesStayWithinTheirWarp) {
  const auto all = in_orders(1, 96, 96, [](int* out) {
    const auto i = static_cast<int>(threadIdx.x);
    int sum = i;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
    out[i] = sum * 100 + __shfl_sync(0xffffffffU, i, 5);
  });
  for (const auto& out : all) {
    for (int i = 0; i < 96; ++i) {
      const int first = i / 32 * 32;
      EXPECT_EQ(out[static_cast<size_t>(i)], (32 * first + 496) * 100 + first + 5);
    }
  }
}

TEST(Emulator, ThreadsThatEndedCountAtBarriers) {
  const auto all = in_orders(2, 64, 128, [](int* out) {
    const auto i = static_cast<int>(threadIdx.x);
    if (i % 3 == 0) return;
    for (int round = 0; round < 4; ++round) __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = i;
  });
  for (const auto& out : all)
    for (int i = 0; i < 128; ++i)
      EXPECT_EQ(out[static_cast<size_t>(i)], i % 64 % 3 == 0 ? -1 : i % 64);
}

TEST(Emulator, MemoryIsOpenWhileKernelsRun) {
  static int opened = 0, closed = 0, seen = 0;
  opened = closed = seen = 0;
  emulator::set_memory_gate({[] { ++opened; }, [] { ++closed; }});
  run(4, 2, nullptr, [] { seen += opened - closed; });
  emulator::set_memory_gate({});
  EXPECT_EQ(opened, 1);
  EXPECT_EQ(closed, 1);
  EXPECT_EQ(seen, 8);
}

struct Increment {
  int* to;
  int amount;
};
void increment(Increment what) {
  *what.to += what.amount;
}

/// A recorded launch keeps its arguments as they were, and is checked at once.
TEST(Emulator, LaunchesThatAreRecorded) {
  static std::vector<std::function<void()>> recorded;
  static int captured = 0;
  emulator::set_launch_recorder(
      {[](void* stream) { return stream == &captured; },
       [](void*, std::function<void()> launch) { recorded.push_back(std::move(launch)); }});
  int sum = 0;
  Increment what{&sum, 5};
  const auto stream = reinterpret_cast<Stream>(&captured);
  launch(increment, 1, 2, stream, what);
  launch_with_memory(increment, 1, 1, 64, stream, what);
  launch(increment, 1, 1, nullptr, what);
  EXPECT_DEATH(launch(increment, 1, 1025, stream, what), "1025 threads");
  emulator::set_launch_recorder({});
  EXPECT_EQ(sum, 5);
  what.amount = 1000;
  for (int replay = 0; replay < 2; ++replay)
    for (const auto& run_recorded : recorded) run_recorded();
  EXPECT_EQ(sum, 5 + 2 * (10 + 5));
}

template <typename Layout>
void multiply_tiles(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> left;
  fragment<matrix_b, 16, 16, 16, __nv_bfloat16, Layout> right;
  fragment<accumulator, 16, 16, 16, float> sums;
  fill_fragment(sums, 1.0F);
  load_matrix_sync(left, a, 24);
  load_matrix_sync(right, b, 16);
  mma_sync(sums, left, right, sums);
  mma_sync(sums, left, right, sums);
  store_matrix_sync(out, sums, 20, mem_row_major);
}

/// On an address that is aligned to 32 bytes.
template <typename T>
struct Tile {
  T* data = static_cast<T*>(std::aligned_alloc(32, 1536));
  Tile() = default;
  Tile(const Tile&) = delete;
  Tile& operator=(const Tile&) = delete;
  ~Tile() { std::free(data); }
};

template <typename Layout>
void expect_tiles() {
  const Tile<__nv_bfloat16> a, b;
  const Tile<float> out;
  for (int i = 0; i < 16 * 24; ++i) a.data[i] = static_cast<float>(i % 7 - 3);
  for (int i = 0; i < 16 * 16; ++i) b.data[i] = static_cast<float>(i % 5 - 2);
  run(1, 32, nullptr, [&] { multiply_tiles<Layout>(a.data, b.data, out.data); });
  constexpr bool kByRows = std::is_same_v<Layout, nvcuda::wmma::row_major>;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      int sum = 0;
      for (int k = 0; k < 16; ++k)
        sum += ((row * 24 + k) % 7 - 3) * ((kByRows ? k * 16 + column : column * 16 + k) % 5 - 2);
      EXPECT_EQ(out.data[row * 20 + column], static_cast<float>(1 + 2 * sum));
    }
  }
}

TEST(Emulator, TilesOfTensorCores) {
  expect_tiles<nvcuda::wmma::row_major>();
  expect_tiles<nvcuda::wmma::col_major>();
}

/// out [16, 8] = a [16, 16] b, b [16, 8] or, transposed, [8, 16]; rows of 24 elements.
template <bool kTransposed>
void multiply_with_words(const __nv_bfloat16* a, const __nv_bfloat16* b, float* out) {
  const auto lane = static_cast<int>(threadIdx.x);
  uint32_t left[4], right[4];
  emulator::load_matrices(left, a + lane % 16 * 24 + lane / 16 * 8, false);
  if constexpr (kTransposed)  // rows of b are columns of the operand
    emulator::load_matrices(right, b + lane % 8 * 24 + lane / 8 % 2 * 8, false);
  else
    emulator::load_matrices(right, b + lane % 16 * 24, true);
  float sums[4] = {1, 1, 1, 1};
  emulator::multiply_add<__nv_bfloat16>(sums, left, right[0], right[1]);
  for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

TEST(Emulator, ProductsOfWords) {
  const Tile<__nv_bfloat16> a, b;
  for (int i = 0; i < 16 * 24; ++i) {
    a.data[i] = static_cast<float>(i % 7 - 3);
    b.data[i] = static_cast<float>(i % 5 - 2);
  }
  std::vector<float> plain(128), transposed(128);
  run(1, 32, nullptr, [&] { multiply_with_words<false>(a.data, b.data, plain.data()); });
  run(1, 32, nullptr, [&] { multiply_with_words<true>(a.data, b.data, transposed.data()); });
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      int sum = 1, of_transposed = 1;
      for (int k = 0; k < 16; ++k) {
        const int left = (row * 24 + k) % 7 - 3;
        sum += left * ((k * 24 + column) % 5 - 2);
        of_transposed += left * ((column * 24 + k) % 5 - 2);
      }
      EXPECT_EQ(plain[static_cast<size_t>(row * 8 + column)], static_cast<float>(sum));
      EXPECT_EQ(transposed[static_cast<size_t>(row * 8 + column)],
                static_cast<float>(of_transposed));
    }
  }
}

/// What a thread reads of a copy, with and without waiting for it.
TEST(Emulator, CopiesAreThereOnceWaitedFor) {
  alignas(16) static const uint32_t from[4] = {1, 2, 3, 4};
  std::vector<uint32_t> seen;
  const auto kernel = [&] {
    auto* to = reinterpret_cast<uint32_t*>(emulator::dynamic_shared_memory());
    emulator::copy_async(to, from, true);
    emulator::end_copies();
    emulator::copy_async(to + 4, from, false);
    emulator::end_copies();
    seen.push_back(to[0]);
    emulator::wait_for_copies(1);
    seen.insert(seen.end(), {to[3], to[4]});
    emulator::wait_for_copies(0);
    seen.push_back(to[4]);
  };
  run(2, 1, nullptr, kernel, 32);
  const std::vector<uint32_t> of_block = {0xffffffffU, 4, 0xffffffffU, 0};
  EXPECT_EQ(std::vector<uint32_t>(seen.begin(), seen.begin() + 4), of_block);
  EXPECT_EQ(std::vector<uint32_t>(seen.begin() + 4, seen.end()), of_block);
}

// ---- What ends the program.

TEST(EmulatorDeathTest, ThreadsThatWaitForEachOther) {
  // Lane 0 waits for its warp, the others for the block.
  EXPECT_DEATH(run(1, 64, nullptr,
                   [] {
                     if (threadIdx.x == 0)
                       __syncwarp();
                     else
                       __syncthreads();
                   }),
               "wait for each other for ever");
  EXPECT_DEATH(run(1, 32, nullptr,
                   [] {
                     if (threadIdx.x < 16) __shfl_xor_sync(0xffffffffU, 1, 1);
                     __syncthreads();
                   }),
               "wait for each other for ever");
}

TEST(EmulatorDeathTest, LaunchesThatTheCardRefuses) {
  const auto nothing = [] {};
  EXPECT_DEATH(run(1, 1025, nullptr, nothing), "1025 threads");
  EXPECT_DEATH(run(1, 0, nullptr, nothing), "refuses");
  EXPECT_DEATH(run(0, 32, nullptr, nothing), "refuses");
  EXPECT_DEATH(run(dim3(1, 65536), 32, nullptr, nothing), "refuses");
  EXPECT_DEATH(run(dim3(1, 1, 65536), 32, nullptr, nothing), "refuses");
  EXPECT_DEATH(run(1, 32, nullptr, nothing, (99 << 10) + 1), "101377 bytes of shared memory");
}

TEST(EmulatorDeathTest, ShufflesOfSomeLanes) {
  EXPECT_DEATH(run(1, 32, nullptr, [] { __shfl_xor_sync(0xffffU, 1, 1); }), "some lanes only");
  EXPECT_DEATH(run(1, 32, nullptr, [] { __shfl_sync(1U, 1, 0); }), "some lanes only");
}

TEST(EmulatorDeathTest, TilesThatAreNotAligned) {
  using namespace nvcuda::wmma;
  const Tile<__nv_bfloat16> tile;
  const auto load = [&](int first, unsigned lead) {
    run(1, 32, nullptr, [&] {
      fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> a;
      load_matrix_sync(a, tile.data + first, lead);
    });
  };
  EXPECT_DEATH(load(8, 16), "not aligned");  // 16 bytes
  EXPECT_DEATH(load(0, 20), "not aligned");  // rows of 40
}

TEST(EmulatorDeathTest, CopiesThatAreNotAligned) {
  const Tile<__nv_bfloat16> tile;
  EXPECT_DEATH(run(1, 1, nullptr, [&] { emulator::copy_async(tile.data + 4, tile.data, true); }),
               "not aligned");
  EXPECT_DEATH(run(1, 32, nullptr,
                   [&] {
                     uint32_t words[4];
                     emulator::load_matrices(words, tile.data + 4, false);
                   }),
               "not aligned");
}

// Shuffles read lanes that are there.
TEST(EmulatorDeathTest, LanesThatEnded) {
  EXPECT_DEATH(run(1, 32, nullptr,
                   [] {
                     if (threadIdx.x >= 16) return;
                     for (int i = 0; i < 3; ++i) __shfl_xor_sync(0xffffffffU, 1, 16);
                   }),
               "a lane that has ended");
}

TEST(EmulatorDeathTest, InstructionsOfAWholeWarp) {
  const Tile<__nv_bfloat16> tile;
  const auto load = [&] {
    uint32_t words[4];
    emulator::load_matrices(words, tile.data, false);
  };
  EXPECT_DEATH(run(1, 32, nullptr,
                   [&] {
                     if (threadIdx.x == 0)
                       load();
                     else
                       __syncwarp();
                   }),
               "at different instructions");
  EXPECT_DEATH(run(1, 16, nullptr, load), "ldmatrix by a part of a warp");
  EXPECT_DEATH(run(1, 16, nullptr,
                   [] {
                     float sums[4] = {};
                     const uint32_t a[4] = {};
                     emulator::multiply_add<__nv_bfloat16>(sums, a, 0, 0);
                   }),
               "a product of tensor cores by a part of a warp");
}

#ifdef __SANITIZE_ADDRESS__
/// One element behind the last, on the heap and in shared memory.
TEST(EmulatorDeathTest, MemoryBeyondItsEnd) {
  EXPECT_DEATH(run(
                   1, 9, nullptr, [] { emulator::dynamic_shared_memory()[threadIdx.x] = 1; }, 8),
               "heap-buffer-overflow");
  const std::unique_ptr<int[]> values(new int[33]());
  EXPECT_DEATH(run(2, 32, nullptr, [&] { values[blockIdx.x * 2 + threadIdx.x] = 1; }),
               "heap-buffer-overflow");
  EXPECT_DEATH(run(1, 34, nullptr, [&] { values[threadIdx.x]++; }), "heap-buffer-overflow");
  EXPECT_DEATH(run(1, 33, nullptr,
                   [] {
                     __shared__ float shared[32];
                     auto* volatile at = shared;
                     at[threadIdx.x] = 1;
                   }),
               "global-buffer-overflow");
  EXPECT_DEATH(run(1, 32, nullptr,
                   [] {
                     float own[8] = {};
                     float* volatile at = own;
                     at[threadIdx.x / 3] = 1;
                   }),
               "stack-buffer-overflow");
}

TEST(EmulatorDeathTest, WideLoadsThatAreNotAligned) {
  const std::unique_ptr<float[]> values(new float[12]());
  const auto load = [&](int first) {
    run(1, 1, nullptr, [&] {
      const auto* wide = reinterpret_cast<const float4*>(values.get() + first);
      const float4 loaded = *wide;
      values[0] = loaded.x + loaded.w;
    });
  };
  load(4);
  EXPECT_DEATH(load(1), "misaligned address");
}
#endif

}  // namespace
}  // namespace sftrun::kernels::cuda::test
