#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "sftrun/layers/parameter.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/parallel/tensor_group.h"
#include "support/rank_threads.h"

namespace sftrun::parallel {
namespace {

/// Columns of a matrix [2, 6] that two ranks divide 2 to 4, as the blocks of a format may demand.
TensorSlice columns_of(int64_t rank) {
  return {.dim = 1,
          .whole_size = 6,
          .ranges = {rank == 0 ? IndexRange{0, 2} : IndexRange{.begin = 2, .count = 4}}};
}

/// Columns of `CopiedModel`: of two shards, which are multiples of 256 values, each has some of a row.
constexpr int64_t kWidth = 200;

/// Rows of [queries; keys] of 8 + 2 rows over 4 ranks: 2 ranks have copies of each row of keys.
TensorSlice rows_of(int64_t rank) {
  return {.dim = 0,
          .whole_size = 10,
          .ranges = {{2 * rank, 2}, {8 + rank / 2, 1, /*copies=*/2, /*copy=*/rank % 2}}};
}

/// A matrix with copied rows, and a vector that 4 ranks have a summand of.
struct CopiedModel {
  explicit CopiedModel(const Mesh& mesh, bool is_sharded) {
    copied = store.add("copied", {3, kWidth}, 0, true);
    copied->slice = rows_of(mesh.rank(Axis::kTp));
    partial = store.add("partial", {3}, 0, true);
    partial->has_partial_gradient = true;
    store.allocate(at::kFloat, at::kCPU,
                   is_sharded ? layers::BufferLayout::per_unit(mesh.sizes().dp_shard)
                              : layers::BufferLayout{});
    if (is_sharded) store.reserve_unit(0);
    units.resize(1);
  }
  layers::ParameterStore store;
  std::vector<layers::Unit> units;
  layers::Parameter *copied, *partial;
};

/// A divided matrix, a vector whose gradient is a sum over the ranks, and one whose gradient every
/// rank has.
struct Model {
  explicit Model(int64_t tp_rank) {
    divided = store.add("divided", {2, columns_of(tp_rank).size()}, 0, true);
    divided->slice = columns_of(tp_rank);
    partial = store.add("partial", {3}, 1, true);
    partial->has_partial_gradient = true;
    complete = store.add("complete", {3}, 1, true);
    store.allocate(at::kFloat, at::kCPU);
    units.resize(2);
  }
  layers::ParameterStore store;
  std::vector<layers::Unit> units;
  layers::Parameter *divided, *partial, *complete;
};

struct Parts {
  explicit Parts(Communicator& comm)
      : mesh({.dp_replicate = comm.world_size() / 2, .tp = 2}, comm.rank()),
        groups(comm, mesh),
        model(mesh.rank(Axis::kTp)),
        strategy(make_strategy({}, groups, {model.store, model.units, at::kCPU})) {}
  Mesh mesh;
  MeshGroups groups;
  Model model;
  std::unique_ptr<Strategy> strategy;
};

TEST(TensorGroup, SumsAndGathersOverTheRanksOfOnePart) {
  test::run_ranks(4, [](Communicator& comm) {
    const Mesh mesh({.dp_replicate = 2, .tp = 2}, comm.rank());
    MeshGroups groups(comm, mesh);
    const TensorGroup group(groups);
    const at::Tensor values = at::full({2}, comm.rank(), at::kFloat);
    const at::Tensor all = group.gather(values);
    const float first = comm.rank() < 2 ? 0 : 2;
    EXPECT_TRUE(at::equal(all, at::tensor({first, first, first + 1, first + 1}).view({2, 2})));
    group.sum(values);
    EXPECT_TRUE(at::equal(values, at::full({2}, 2 * first + 1, at::kFloat)));
    comm.leave();
  });
}

/// Gradients of a divided parameter are summed over copies of the part, those of a summand over the
/// parts, too, and complete ones are not counted twice.
TEST(TensorParts, SumsEachGradientOverTheRanksThatHaveSummands) {
  test::run_ranks(4, [](Communicator& comm) {
    Parts parts(comm);
    parts.strategy->begin_step();
    const auto rank = static_cast<float>(comm.rank()), group = rank < 2 ? 1.0F : 10.0F;
    parts.model.divided->grad.fill_(rank + 1);
    parts.model.partial->grad.fill_(rank + 1);
    parts.model.complete->grad.fill_(group);
    for (const int64_t unit : {1, 0}) parts.strategy->gradients_ready(unit);
    parts.strategy->finish_step();
    const float of_part = comm.rank() % 2 == 0 ? 1 + 3 : 2 + 4;
    EXPECT_TRUE(at::all(parts.model.divided->grad == of_part).item<bool>());
    EXPECT_TRUE(at::all(parts.model.partial->grad == 1 + 2 + 3 + 4).item<bool>());
    EXPECT_TRUE(at::all(parts.model.complete->grad == 11).item<bool>());
    comm.leave();
  });
}

/// Each value counts once: 12 of the divided matrix, 3 + 3 of the vectors.
TEST(TensorParts, CountsEveryValueOnceInSquares) {
  test::run_ranks(4, [](Communicator& comm) {
    Parts parts(comm);
    const at::Tensor ones = parts.strategy->owned().flat.master;
    for (const layers::Parameter* of :
         {parts.model.divided, parts.model.partial, parts.model.complete})
      ones.narrow(0, of->offset, of->numel).fill_(1);
    EXPECT_EQ(parts.strategy->squares(ones).item<double>(), 12 + 3 + 3);
    comm.leave();
  });
}

TEST(TensorParts, PutsPartsTogetherAndTakesThemApart) {
  test::run_ranks(2, [](Communicator& comm) {
    Parts parts(comm);
    const at::Tensor whole = at::arange(12, at::kFloat).view({2, 6});
    parts.strategy->assign(*parts.model.divided, whole);
    EXPECT_TRUE(at::equal(parts.model.divided->master.detach(),
                          layers::part_of(whole, columns_of(comm.rank()))));
    EXPECT_TRUE(at::equal(parts.strategy->master_of(*parts.model.divided), whole));
    const at::Tensor vector = at::arange(3, at::kFloat);
    parts.strategy->assign(*parts.model.partial, vector);
    EXPECT_TRUE(at::equal(parts.strategy->master_of(*parts.model.partial), vector));
    EXPECT_EQ(parts.model.store.numel(), 12 + 3 + 3);
    comm.leave();
  });
}

std::unique_ptr<Strategy> strategy_of(CopiedModel& model, MeshGroups& groups, bool is_sharded) {
  std::unique_ptr<UnitShards> shards;
  if (is_sharded) {
    shards = std::make_unique<UnitShards>(Sharding{.gradients = true}, groups.mesh());
    shards->take(0, model.units[0], model.store.buffers_of(0));
  }
  return make_strategy({.passes_read_masters = true}, groups, {model.store, model.units, at::kCPU},
                       std::move(shards));
}

/// Ranks that have a copy of a row each have a summand of its gradient. With whole values and with
/// shards, of which a row may be in two.
TEST(TensorParts, SumsGradientsOfCopiesOverTheRanksThatHaveThem) {
  for (const int num_shards : {1, 2}) {
    test::run_ranks(4 * num_shards, [&](Communicator& comm) {
      const Mesh mesh({.dp_shard = num_shards, .tp = 4}, comm.rank());
      MeshGroups groups(comm, mesh);
      CopiedModel model(mesh, num_shards > 1);
      const auto strategy = strategy_of(model, groups, num_shards > 1);
      strategy->begin_step();
      strategy->before(0, layers::UnitPass::kBackward);
      const auto rank = static_cast<float>(comm.rank()), part = static_cast<float>(comm.rank() % 4);
      model.copied->grad.fill_(rank + 1);
      model.partial->grad.fill_(rank + 1);
      strategy->after(0, layers::UnitPass::kBackward);
      strategy->gradients_ready(0);
      strategy->finish_step();
      const auto n = static_cast<float>(num_shards);
      // Over the shards: part + 1, and 4 more for each shard after the first.
      const auto of_ranks = [&](float sum, float ranks) { return n * sum + (n - 1) * 4 * ranks; };
      const float pair = part < 2 ? 1 + 2 : 3 + 4;
      const at::Tensor expected = at::cat({at::full({2 * kWidth}, of_ranks(part + 1, 1)),
                                           at::full({kWidth}, of_ranks(pair, 2)),
                                           at::full({3}, of_ranks(1 + 2 + 3 + 4, 4))});
      at::Tensor actual;
      for (const layers::OwnedValues::Piece& piece : strategy->owned().pieces) {
        const at::Tensor own = strategy->owned().flat.grad.narrow(0, piece.offset, piece.numel),
                         all = strategy->whole(own, piece.begin, piece.parameter->numel);
        actual = actual.defined() ? at::cat({actual, all}) : all;
      }
      EXPECT_TRUE(at::equal(actual, expected)) << actual << expected;
      comm.leave();
    });
  }
}

/// Of 10 rows and the vector, which is zero.
TEST(TensorParts, CountsAndJoinsOneOfTheCopies) {
  for (const int num_shards : {1, 2}) {
    test::run_ranks(4 * num_shards, [&](Communicator& comm) {
      const Mesh mesh({.dp_shard = num_shards, .tp = 4}, comm.rank());
      MeshGroups groups(comm, mesh);
      CopiedModel model(mesh, num_shards > 1);
      const auto strategy = strategy_of(model, groups, num_shards > 1);
      const at::Tensor whole =
          at::arange(10 * kWidth, at::kFloat).remainder(7).neg().view({10, kWidth});
      strategy->assign(*model.copied, whole);
      EXPECT_TRUE(at::equal(strategy->master_of(*model.copied), whole));
      EXPECT_EQ(strategy->squares(strategy->owned().flat.master).item<double>(),
                whole.square().sum().item<double>());
      EXPECT_EQ(model.store.numel(), 10 * kWidth + 3);
      comm.leave();
    });
  }
}

}  // namespace
}  // namespace sftrun::parallel
