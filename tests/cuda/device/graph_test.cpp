// Whether the stand-in records and replays as a card does, and refuses what CUDA refuses in a
// capture.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "emulator.h"

namespace host_backed {
namespace {

using at::Tensor;

const at::TensorOptions kOnCard = at::TensorOptions(at::kCUDA).dtype(at::kFloat);

/// Records what the body asks for on a stream of its own.
void capture(at::cuda::CUDAGraph& graph, const std::function<void()>& body,
             at::cuda::MempoolId_t pool = {0, 0}) {
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  body();
  graph.capture_end();
}

Tensor numbers(std::initializer_list<float> values) {
  return at::tensor(at::ArrayRef<float>(values), at::kFloat).to(at::kCUDA);
}
void expect_numbers(const Tensor& actual, std::initializer_list<float> values) {
  const Tensor expected = at::tensor(at::ArrayRef<float>(values), at::kFloat);
  EXPECT_TRUE(actual.cpu().equal(expected)) << actual.cpu();
}
bool is_all_nan(const Tensor& x) {
  return x.isnan().all().item<bool>();
}

/// x += amount, as kernels are launched.
void launch_add(const Tensor& x, float amount) {
  auto* data = x.data_ptr<float>();
  emulator::run(1, static_cast<unsigned>(x.numel()), c10::cuda::getCurrentCUDAStream().stream(),
                [=] { data[threadIdx.x] += amount; });
}

/// What the body throws on a captured stream; the device is usable afterwards.
std::string refused(const std::function<void()>& body) {
  std::string message;
  {
    at::cuda::CUDAGraph graph;
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
      EXPECT_THROW(graph.capture_end(), c10::Error) << "the capture is not spoilt";
    }
  }
  expect_numbers(numbers({1, 2}) + 1, {2, 3});
  return message;
}
constexpr const char* kNotPermitted = "operation not permitted when stream is capturing";

#define EXPECT_REFUSED(body, words) \
  EXPECT_NE(refused([&] { body; }).find(words), std::string::npos) << refused([&] { body; })

// ---- What is recorded.

TEST(Graph, NothingIsDoneWhileItIsCaptured) {
  Tensor outside = numbers({1, 2}), inside;
  const Tensor weights = numbers({3, 4});
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    inside = weights * 2;
    outside.add_(inside);
    outside.copy_(weights);
    outside.zero_();
    launch_add(outside, 5);
  });
  expect_numbers(outside, {1, 2});
  EXPECT_TRUE(is_all_nan(inside));
}

TEST(Graph, EachReplayDoesItOnce) {
  Tensor sum = numbers({1, 2});
  const Tensor x = numbers({10, 20});
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { sum.add_(x * 2); });
  graph.replay();
  expect_numbers(sum, {21, 42});
  graph.replay();
  expect_numbers(sum, {41, 82});
}

TEST(Graph, KernelsAndOperatorsInTheirOrder) {
  const Tensor x = numbers({1, 2});
  Tensor y;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    y = x * 10;
    launch_add(y, 3);
    y.mul_(2);
    y.slice(0, 1, 2).neg_();
  });
  graph.replay();
  expect_numbers(y, {26, -46});
  x.copy_(numbers({5, 6}));
  graph.replay();
  expect_numbers(y, {106, -126});
}

TEST(Graph, InputsAreReadAtEachReplay) {
  Tensor tokens = at::zeros({2}, kOnCard.dtype(at::kLong));
  const Tensor table = at::arange(6, kOnCard).view({3, 2});
  Tensor rows;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { rows = table.index_select(0, tokens); });
  tokens.copy_(at::tensor({2, 1}, at::kLong));
  graph.replay();
  EXPECT_TRUE(rows.cpu().equal(at::tensor({4.F, 5.F, 2.F, 3.F}).view({2, 2})));
}

TEST(Graph, NumbersOfTheHostGoByValue) {
  Tensor x = at::ones({}, kOnCard.dtype(at::kBFloat16)), y;
  double factor = 3;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { y = x * factor; });
  factor = 7;
  graph.replay();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(y.item<float>(), 3);
}

TEST(Graph, OperatorsWithManyResultsAndGivenOnes) {
  const Tensor x = numbers({3, 1, 2});
  Tensor out = at::empty({0}, kOnCard), values, indices;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    std::tie(values, indices) = x.sort();
    at::mul_out(out, values, values);
    values.unsqueeze_(0);
  });
  EXPECT_EQ(values.sizes(), at::IntArrayRef({1, 3}));
  graph.replay();
  expect_numbers(values.view(-1), {1, 2, 3});
  expect_numbers(out, {1, 4, 9});
  EXPECT_TRUE(indices.cpu().equal(at::tensor({1, 2, 0}, at::kLong)));
}

TEST(Graph, OperatorsOfCudaAlone) {
  const Tensor a = at::ones({2, 3}, kOnCard.dtype(at::kBFloat16));
  Tensor product;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { product = at::mm(a, a.t(), at::kFloat); });
  graph.replay();
  expect_numbers(product.view(-1), {3, 3, 3, 3});
}

TEST(Graph, BackwardPassesOnTheStreamOfTheForward) {
  Tensor x = numbers({1, 2}).requires_grad_();
  x.mutable_grad() = at::zeros({2}, kOnCard);
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { (x * x).sum().backward(); });
  expect_numbers(x.grad(), {0, 0});
  graph.replay();
  graph.replay();
  expect_numbers(x.grad(), {4, 8});
}

TEST(Graph, CopiesOfPinnedMemory) {
  const Tensor host = at::tensor({1.F, 2.F}).pin_memory(), back = at::zeros({2}).pin_memory();
  Tensor x = at::zeros({2}, kOnCard);
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    x.copy_(host, /*non_blocking=*/true);
    x.mul_(2);
    back.copy_(x, /*non_blocking=*/true);
  });
  EXPECT_EQ(back[0].item<float>(), 0);
  host.fill_(4);
  graph.replay();
  EXPECT_EQ(back[1].item<float>(), 8);
}

/// Of a kernel that gets released memory of the graph, in a replay and beside it.
TEST(GraphDeathTest, ReleasedMemoryOfAGraph) {
  Tensor x = numbers({1});
  float* released = nullptr;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    Tensor temporary = x + 1;
    released = temporary.data_ptr<float>();
    launch_add(temporary, 2);
    x.copy_(temporary * 2);
  });
  graph.replay();
  expect_numbers(x, {8});
  EXPECT_DEATH(emulator::run(1, 1, nullptr, [=] { *released = 1; }), "");
}

TEST(Graph, OtherStreamsGoOn) {
  Tensor x = numbers({1});
  const c10::cuda::CUDAStream other = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    const c10::cuda::CUDAStreamGuard guard(other);
    x.add_(1);
    EXPECT_EQ(x.item<float>(), 2);
  });
  EXPECT_EQ(x.item<float>(), 2);
}

// ---- Memory.

TEST(Graph, MemoryIsTheGraphsUntilItIsReset) {
  const auto live = [] { return c10::cuda::CUDACachingAllocator::getDeviceStats(0); };
  const int64_t before = live().reserved_bytes[0].current;
  const Tensor x = numbers({1, 2});
  const int64_t with_x = live().reserved_bytes[0].current;
  const void* address = nullptr;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    Tensor temporary = x + 1;
    address = temporary.data_ptr();
    temporary.reset();
    EXPECT_NE((x + 2).data_ptr(), address);
  });
  c10::cuda::CUDACachingAllocator::emptyCache();
  EXPECT_NE(at::empty({2}, kOnCard).data_ptr(), address);
  EXPECT_GT(live().reserved_bytes[0].current, with_x);
  graph.replay();
  graph.reset();
  EXPECT_EQ(live().reserved_bytes[0].current, with_x);
  EXPECT_GT(with_x, before);
}

TEST(Graph, ResultsOutliveTheGraph) {
  Tensor y;
  {
    const Tensor x = numbers({1, 2});
    at::cuda::CUDAGraph graph;
    capture(graph, [&] { y = x + 1; });
    graph.replay();
  }
  expect_numbers(y, {2, 3});
}

TEST(Graph, WhatWasNotRecordedIsNotKeptInItsMemory) {
  Tensor state, y;
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    state = at::empty({2}, kOnCard);
    y = state * 2;
  });
  state.fill_(1);
  graph.replay();
  EXPECT_TRUE(is_all_nan(y));
}

TEST(Graph, GraphsOfAPoolOverwriteEachOther) {
  const Tensor x = numbers({1});
  Tensor kept, later;
  at::cuda::CUDAGraph first, second, alone;
  capture(first, [&] { kept = (x + 1) * 3; });
  capture(
      second, [&] { later = x + 5; }, first.pool());
  capture(alone, [&] { x + 7; });
  EXPECT_EQ(first.pool(), second.pool());
  EXPECT_NE(at::cuda::graph_pool_handle(), at::cuda::graph_pool_handle());
  EXPECT_NE(first.pool(), alone.pool());
  first.replay();
  second.replay();
  alone.replay();
  expect_numbers(kept, {6});
  expect_numbers(later, {6});
  first.replay();  // whose x + 1 may be where the second graph has its result
  EXPECT_TRUE(is_all_nan(later));
}

TEST(GraphDeathTest, MemoryThatWasReleasedBeforeAReplay) {
  Tensor x = numbers({1});
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { x.add_(1); });
  x.reset();
  EXPECT_DEATH(graph.replay(), "memory that was released");
}

// ---- What is refused.

TEST(Graph, CallsThatWait) {
  const Tensor x = numbers({1, 2}), index = at::zeros({1}, kOnCard.dtype(at::kLong));
  c10::Event event(at::kCUDA);
  event.record(c10::cuda::getCurrentCUDAStream());
  EXPECT_REFUSED(x.sum().item(), kNotPermitted);
  EXPECT_REFUSED(x.nonzero(), kNotPermitted);
  EXPECT_REFUSED(x.index({x > 1}), kNotPermitted);
  EXPECT_REFUSED(x.cpu(), kNotPermitted);
  EXPECT_REFUSED(at::zeros({2}).to(at::kCUDA), kNotPermitted);
  EXPECT_REFUSED(x.copy_(at::zeros({2}), /*non_blocking=*/true), kNotPermitted);
  EXPECT_REFUSED(x.copy_(at::zeros({2}).pin_memory()), kNotPermitted);
  EXPECT_REFUSED(c10::cuda::getCurrentCUDAStream().synchronize(), kNotPermitted);
  EXPECT_REFUSED(c10::cuda::getDefaultCUDAStream().synchronize(), kNotPermitted);
  EXPECT_REFUSED(c10::cuda::getCurrentCUDAStream().query(), kNotPermitted);
  EXPECT_REFUSED(event.synchronize(), kNotPermitted);
  EXPECT_REFUSED(event.query(), kNotPermitted);
  EXPECT_REFUSED(at::detail::getCUDAHooks().deviceSynchronize(0), kNotPermitted);
  EXPECT_EQ(refused([&] { x.index({index}); }), "");
}

TEST(Graph, WorkAfterARefusedCall) {
  const Tensor x = numbers({1});
  EXPECT_REFUSED(
      {
        EXPECT_THROW(x.item(), c10::Error);
        x + 1;
      },
      "operation failed due to a previous error during capture");
}

TEST(Graph, CallsOutOfTurn) {
  at::cuda::CUDAGraph graph;
  EXPECT_THROW(graph.capture_begin(), c10::Error) << "on the default stream";
  EXPECT_THROW(graph.capture_end(), c10::Error);
  EXPECT_THROW(graph.replay(), c10::Error);
  EXPECT_THROW(graph.pool(), c10::Error);
  capture(graph, [] {});
  graph.replay();
  EXPECT_THROW(capture(graph, [] {}), c10::Error) << "twice";
  EXPECT_REFUSED(graph.replay(), kNotPermitted);
  at::cuda::CUDAGraph outer;
  capture(outer, [] { EXPECT_THROW(at::cuda::CUDAGraph().capture_begin(), c10::Error); });
}

TEST(Graph, ACaptureThatIsLeftInTheMiddle) {
  const Tensor x = numbers({1});
  at::cuda::CUDAGraph graph;
  EXPECT_THROW(capture(graph,
                       [&] {
                         x.add_(1);
                         throw std::runtime_error("of the program");
                       }),
               std::runtime_error);
  graph.reset();
  capture(graph, [&] { x.add_(2); });
  graph.replay();
  expect_numbers(x, {3});
}

// ---- Other streams in a capture.

TEST(Graph, StreamsForkAndJoin) {
  const Tensor x = numbers({1});
  Tensor y;
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    c10::Event forked(at::kCUDA), joined(at::kCUDA);
    forked.record(c10::cuda::getCurrentCUDAStream());
    forked.block(side);
    {
      const c10::cuda::CUDAStreamGuard guard(side);
      y = x + 1;
    }
    joined.record(side);
    joined.block(c10::cuda::getCurrentCUDAStream());
    y.mul_(3);
  });
  EXPECT_TRUE(is_all_nan(y));
  graph.replay();
  expect_numbers(y, {6});
  const c10::cuda::CUDAStreamGuard guard(side);
  EXPECT_EQ((x + 1).item<float>(), 2) << "the stream is still captured";
}

/// What a capture's end says of a stream that joined it; a body gets the stream.
std::string end_of_fork(const std::function<void(const c10::Stream& side)>& body) {
  try {
    at::cuda::CUDAGraph graph;
    capture(graph, [&] {
      const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
      c10::Event forked(at::kCUDA);
      forked.record(c10::cuda::getCurrentCUDAStream());
      forked.block(side);
      body(side);
    });
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Graph, WorkThatIsNotJoined) {
  const Tensor x = numbers({1});
  const auto join = [](const c10::Stream& side) {
    c10::Event joined(at::kCUDA);
    joined.record(side);
    joined.block(c10::cuda::getCurrentCUDAStream());
  };
  const auto work = [&](const c10::Stream& side) {
    const c10::cuda::CUDAStreamGuard guard(side);
    x.add_(1);
  };
  const auto has = [](const std::string& text) {
    return text.find("unjoined work") != std::string::npos;
  };
  EXPECT_TRUE(has(end_of_fork([](const c10::Stream&) {})));
  EXPECT_TRUE(has(end_of_fork(work)));
  EXPECT_TRUE(has(end_of_fork([&](const c10::Stream& side) {
    join(side);
    work(side);
  })));
  EXPECT_EQ(end_of_fork([&](const c10::Stream& side) {
              work(side);
              join(side);
            }),
            "");
}

TEST(Graph, EventsOfACaptureStayInIt) {
  c10::Event before(at::kCUDA), within(at::kCUDA);
  before.record(c10::cuda::getCurrentCUDAStream());
  EXPECT_REFUSED(before.block(c10::cuda::getCurrentCUDAStream()), "uncaptured work");
  at::cuda::CUDAGraph graph;
  capture(graph, [&] {
    within.record(c10::cuda::getCurrentCUDAStream());
    before.record(c10::cuda::getDefaultCUDAStream());
  });
  EXPECT_THROW(within.block(c10::cuda::getDefaultCUDAStream()), c10::Error);
  EXPECT_THROW(within.synchronize(), c10::Error);
  before.synchronize();
  within.record(c10::cuda::getDefaultCUDAStream());
  within.synchronize();
}

}  // namespace
}  // namespace host_backed
