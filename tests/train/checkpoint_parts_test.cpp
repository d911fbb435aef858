#include "../../src/train/checkpoint_parts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "sftrun/parallel/strategy.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/temporary_directory.h"

namespace sftrun::train {
namespace fs = std::filesystem;
namespace {

/// The parts of two ranks: "a" [10] fp32 is divided at 4, "b" [2, 3] uint8 is of rank 1 alone.
std::vector<StateTensor> parts_of(int rank) {
  const at::Tensor a = at::arange(10, at::kFloat), b = at::arange(6, at::kByte);
  if (rank == 0) return {{"a", a.narrow(0, 0, 4), 0, {10}}, {"b", b.narrow(0, 0, 0), 0, {2, 3}}};
  return {{"a", a.narrow(0, 4, 6), 4, {10}}, {"b", b, 0, {2, 3}}};
}

class CheckpointParts : public ::testing::Test {
 protected:
  void write(int rank) {
    write_parts(directory_.path(), rank, {{"optimizer", tensors_of_parts(parts_of(rank))}});
  }
  void write_index() {
    write_parts_index(directory_.path(), {{"optimizer", shapes_of(parts_of(0))}});
  }
  at::Tensor read(const std::string& name, int64_t begin, int64_t count, at::ScalarType type) {
    const at::Tensor to = at::full({count}, 99, type);
    DividedTensors(directory_.path(), "optimizer").read({name, to, begin, {}}, to);
    return to;
  }
  test::TemporaryDirectory directory_;
};

TEST_F(CheckpointParts, AnyRangeIsReadWhoeverWroteIt) {
  write(0);
  write(1);
  write_index();
  for (int64_t begin = 0; begin <= 10; ++begin) {
    for (int64_t count = 0; begin + count <= 10; ++count) {
      EXPECT_TRUE(at::equal(read("a", begin, count, at::kFloat),
                            at::arange(begin, begin + count, at::kFloat)));
    }
  }
  EXPECT_TRUE(at::equal(read("b", 2, 3, at::kByte), at::arange(2, 5, at::kByte)));
}

/// Tensor parallelism gives a rank columns, and dp_shard a range of their values.
TEST_F(CheckpointParts, ShardsOfColumnsTakeTheirValuesOfTheWholeMatrix) {
  constexpr int64_t kRows = 64, kColumns = 12;  // more values than the smallest part has
  const at::Tensor whole = at::arange(kRows * kColumns, at::kFloat).view({kRows, kColumns});
  const std::vector<StateTensor> parts = {StateTensor::whole("matrix", whole)};
  write_parts(directory_.path(), 0, {{kTrainableParts, tensors_of_parts(parts)}});
  write_parts_index(directory_.path(), {{kTrainableParts, shapes_of(parts)}});
  test::run_ranks(4, [&](parallel::Communicator& comm) {
    const parallel::Mesh mesh({.dp_shard = 2, .tp = 2}, comm.rank());
    parallel::MeshGroups groups(comm, mesh);
    layers::ParameterStore store;
    layers::Parameter* matrix = store.add("matrix", {kRows, kColumns / 2}, 0, true);
    const int64_t first = mesh.rank(parallel::Axis::kTp) * kColumns / 2;
    matrix->slice = {.dim = 1,
                     .whole_size = kColumns,
                     .ranges = {IndexRange{.begin = first, .count = kColumns / 2}}};
    store.allocate(at::kFloat, at::kCPU, layers::BufferLayout::per_unit(2));
    store.reserve_unit(0);
    std::vector<layers::Unit> units(1);
    auto shards = std::make_unique<parallel::UnitShards>(
        parallel::sharding_of(config::ShardLevel::kWeights), mesh);
    shards->take(0, units[0], store.buffers_of(0));
    const auto strategy =
        parallel::make_strategy({}, groups, {store, units, at::kCPU}, std::move(shards));
    restore_parameters(directory_.path(), *strategy);
    EXPECT_GT(strategy->owned().pieces.at(0).numel, 0) << "each rank owns some";
    EXPECT_TRUE(at::equal(strategy->master_of(*matrix), whole));
    comm.leave();
  });
}

TEST_F(CheckpointParts, WhatIsNotThereIsAnError) {
  write(0);
  write(1);
  write_index();
  test::expect_error([&] { read("a", 8, 3, at::kFloat); }, {"lacks a", "parts.json"});
  test::expect_error([&] { read("c", 0, 1, at::kFloat); }, {"lacks c", "parts.json"});
  std::ofstream(directory_.path() / "parts.json") << "{";
  test::expect_error([&] { read("a", 0, 1, at::kFloat); }, {"damaged", "parts.json"});
}

TEST_F(CheckpointParts, AListThatSomebodyEditedIsRefused) {
  write(0);
  write(1);
  const fs::path index = directory_.path() / "parts.json";
  const std::string file = "optimizer-rank-00000.safetensors";
  const auto range = [&](const nlohmann::json& name, const nlohmann::json& begin,
                         const nlohmann::json& numel) {
    return nlohmann::json{{"file", name}, {"begin", begin}, {"numel", numel}};
  };
  using nlohmann::json;
  for (const json& of_a :
       {json("x"), json(3), json::array(), json::array({1, 2}),
        json::array({range("../" + file, 0, 10)}), json::array({range("/etc/passwd", 0, 10)}),
        json::array({range(3, 0, 10)}), json::array({range(nullptr, 0, 10)}),
        json::array({range(file, -1, 10)}), json::array({range(file, "x", 10)}),
        json::array({range(file, 1, 9)}), json::array({range(file, 0, 6), range(file, 4, 4)}),
        json::array({range(file, 0, int64_t{1} << 61)})}) {
    std::ofstream(index) << json{{"optimizer", {{"a", of_a}}}}.dump();
    test::expect_error<DataError>([&] { read("a", 0, 4, at::kFloat); },
                                  {"list of parts is damaged", "parts.json"});
  }
  for (const json& all : {json(), json::array(), json{{"optimizer", nullptr}}}) {
    std::ofstream(index) << all.dump();
    test::expect_error<DataError>([&] { read("a", 0, 4, at::kFloat); },
                                  {"list of parts is damaged"});
  }
}

TEST_F(CheckpointParts, AFileWithOtherTypesIsRefused) {
  write(0);
  write(1);
  write_index();
  test::expect_error<DataError>([&] { read("b", 0, 1, at::kFloat); }, {"lacks b"});
}

/// As when the ranks of another machine write to a disk of their own.
TEST_F(CheckpointParts, EveryRankMustHaveWritten) {
  write(1);
  test::expect_error<DeviceError>([&] { write_index(); }, {"all parts of a", "share"});
  write(0);
  EXPECT_NO_THROW(write_index());
}

}  // namespace
}  // namespace sftrun::train
