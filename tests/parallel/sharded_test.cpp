#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/model/stage.h"
#include "sftrun/parallel/strategy.h"
#include "support/load_in_shards.h"
#include "support/rank_threads.h"
#include "support/test_data.h"

/// What ranks keep and communicate under sharded strategies. That they train as one process does is
/// tested in train/trainer_test.cpp and by scripts/strategy_parity.py.
namespace sftrun::parallel {
namespace {

using layers::UnitPass;

constexpr int kRanks = 2;

std::shared_ptr<const weights::Checkpoint> checkpoint() {
  return weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "models/tied-gqa");
}

model::DecoderOptions lora_over_nf4() {
  model::DecoderOptions options;
  options.trains = model::Trains::kLora;
  options.lora.r = 4;
  options.base.quant = QuantOptions{};
  return options;
}

/// A model in parts, and its strategy.
struct Divided {
  Divided(Communicator& comm, config::Strategy strategy, model::DecoderOptions options,
          bool trained_on_host = false) {
    auto parts =
        test::load_in_shards(strategy, comm, options, /*frozen_on_host=*/false, trained_on_host);
    decoder = model::Decoder::load(checkpoint(), options);
    MeshGroups groups(comm, test::mesh_of(strategy, comm));
    of = make_strategy({.passes_read_masters = true}, groups,
                       {decoder->parameters(), decoder->units(), decoder->options().device},
                       std::move(parts));
  }
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<Strategy> of;
};

bool has_memory(const at::Tensor& flat) {
  return flat.storage().data() != nullptr;
}

/// After loading no unit is whole on any rank; before it is used it is, to the byte, and afterwards
/// it is not.
TEST(Sharded, UnitsAreWholeOnlyWhileTheyAreUsed) {
  test::run_ranks(kRanks, [](Communicator& comm) {
    model::DecoderOptions whole_options = lora_over_nf4();
    whole_options.buffers = layers::BufferLayout::per_unit(kRanks);
    const auto whole = model::Decoder::load(checkpoint(), whole_options);
    Divided divided(comm, config::Strategy::kFsdp, lora_over_nf4());
    uint64_t frozen = 0;
    for (size_t i = 0; i < whole->units().size(); ++i) {
      const auto unit = static_cast<int64_t>(i);
      SCOPED_TRACE(whole->units()[i].name);
      layers::FrozenStorage& storage = whole->units()[i].frozen;
      storage.place(kRanks * layers::FrozenStorage::kPartAlignment);
      layers::reserve_memory(storage.bytes());
      storage.read(0, storage.bytes());
      const at::Tensor &expected = storage.bytes(),
                       &bytes = divided.decoder->units()[i].frozen.bytes();
      frozen += expected.nbytes();
      const layers::FlatValues* trained = divided.decoder->parameters().buffers_of(unit);
      EXPECT_FALSE(has_memory(bytes));
      divided.of->before(unit, UnitPass::kForward);
      EXPECT_TRUE(at::equal(bytes, expected));
      if (trained != nullptr) {
        EXPECT_TRUE(at::equal(trained->master, whole->parameters().buffers_of(unit)->master));
        EXPECT_FALSE(has_memory(trained->grad)) << "gradients are for backward passes";
      }
      divided.of->after(unit, UnitPass::kForward);
      EXPECT_FALSE(has_memory(bytes));
      if (trained != nullptr) {
        EXPECT_FALSE(has_memory(trained->master));
      }
    }
    const StoredBytes stored = divided.of->stored_bytes();
    EXPECT_EQ(*stored.frozen, frozen / kRanks);
    EXPECT_EQ(stored.gradients, divided.of->owned().flat.master.nbytes());
    comm.leave();
  });
}

/// zero1 and zero2 keep the frozen base whole, and what passes read.
TEST(Sharded, FrozenTensorsStayWholeWhereOnlyTrainedOnesAreDivided) {
  test::run_ranks(kRanks, [](Communicator& comm) {
    for (const config::Strategy strategy : {config::Strategy::kZero1, config::Strategy::kZero2}) {
      Divided divided(comm, strategy, lora_over_nf4());
      EXPECT_FALSE(divided.of->stored_bytes().frozen.has_value());
      const uint64_t own = divided.of->owned().flat.master.nbytes();
      EXPECT_EQ(divided.of->stored_bytes().trainable, own * (1 + kRanks));
      EXPECT_EQ(divided.of->stored_bytes().gradients,
                strategy == config::Strategy::kZero1 ? own * (1 + kRanks) : own);
    }
    comm.leave();
  });
}

/// A small unit and a large one, all of which trains, in parts.
struct TwoUnits {
  explicit TwoUnits(Communicator& comm) : mesh({.dp_shard = kRanks}, comm.rank()), units(2) {
    store.add("small", {64}, 0, true);
    store.add("large", {int64_t{1} << 18}, 1, true);
    store.allocate(at::kFloat, at::kCPU, layers::BufferLayout::per_unit(kRanks));
    auto parts = std::make_unique<UnitShards>(sharding_of(config::ShardLevel::kWeights), mesh);
    for (const int64_t unit : {0, 1}) {
      store.reserve_unit(unit);
      parts->take(unit, units[static_cast<size_t>(unit)], store.buffers_of(unit));
    }
    MeshGroups groups(comm, mesh);
    of = make_strategy({}, groups, {store, units, at::kCPU}, std::move(parts));
  }
  Mesh mesh;
  layers::ParameterStore store;
  std::vector<layers::Unit> units;
  std::unique_ptr<Strategy> of;
};

/// The uses of a pipeline's first stage with two micro-batches: at the end of a step a unit is
/// gathered ahead in vain, and again in the next one, after the update. Gloo gathers on two threads.
TEST(Sharded, ValuesGatheredAheadInVainDoNotReplaceNewerOnes) {
  test::run_ranks(kRanks, [](Communicator& comm) {
    TwoUnits model(comm);
    for (int step = 1; step <= 300; ++step) {  // one in 60 is wrong without the wait
      const auto use = [&](int64_t unit, UnitPass pass) {
        model.of->before(unit, pass);
        EXPECT_TRUE(at::all(model.store.buffers_of(unit)->master == step).item<bool>())
            << "unit " << unit << " in step " << step;
        model.of->after(unit, pass);
      };
      model.of->begin_step();
      model.of->owned().flat.master.fill_(step);
      model.store.compute_changed();
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch)
        for (const int64_t unit : {0, 1}) use(unit, UnitPass::kForward);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch)
        for (const int64_t unit : {1, 0}) use(unit, UnitPass::kBackward);
      model.of->finish_step();
    }
    comm.leave();
  });
}

/// Frozen values are never reduced: a rank passes each trained value once per reduction.
TEST(Sharded, ReducesTrainedValuesAlone) {
  test::run_ranks(kRanks, [](Communicator& comm) {
    Divided divided(comm, config::Strategy::kFsdp, lora_over_nf4());
    const auto num_units = static_cast<int64_t>(divided.decoder->units().size());
    const CollectiveCount before = comm.counts().reduce_scatter;
    divided.of->begin_step();
    int64_t num_trained = 0;
    for (int64_t unit = num_units - 1; unit >= 0; --unit) {
      divided.of->before(unit, UnitPass::kBackward);
      if (const layers::FlatValues* flat = divided.decoder->parameters().buffers_of(unit)) {
        ++num_trained;
        flat->grad.fill_(comm.rank() + 1);
      }
      divided.of->after(unit, UnitPass::kBackward);
      divided.of->gradients_ready(unit);
    }
    divided.of->finish_step();
    const CollectiveCount after = comm.counts().reduce_scatter;
    EXPECT_EQ(after.calls - before.calls, num_trained);
    EXPECT_EQ(after.bytes - before.bytes, kRanks * divided.of->owned().flat.grad.nbytes());
    EXPECT_TRUE(divided.of->owned().flat.grad.eq(1 + 2).all().item<bool>()) << "the sum over ranks";
    comm.leave();
  });
}

/// Trained values on the host: a unit's are in memory only while it is used, and its gradients until
/// they are added to those of earlier micro-batches. The frozen base stays where it is with ddp.
TEST(Sharded, TrainedValuesComeForEachUseFromTheHost) {
  test::run_ranks(kRanks, [](Communicator& comm) {
    for (const config::Strategy strategy : {config::Strategy::kDdp, config::Strategy::kFsdp}) {
      Divided divided(comm, strategy, lora_over_nf4(), /*trained_on_host=*/true);
      const auto num_units = static_cast<int64_t>(divided.decoder->units().size());
      const layers::FlatValues& own = divided.of->owned().flat;
      EXPECT_EQ(divided.of->stored_bytes().trainable, 0);
      EXPECT_EQ(divided.of->stored_bytes().gradients, 0);
      EXPECT_EQ(divided.of->stored_bytes().frozen.has_value(), strategy == config::Strategy::kFsdp);
      own.master.fill_(3);
      divided.decoder->parameters().compute_changed();
      divided.of->begin_step();
      for (int micro_batch = 1; micro_batch <= 2; ++micro_batch) {
        for (int64_t unit = num_units - 1; unit >= 0; --unit) {
          const layers::FlatValues* flat = divided.decoder->parameters().buffers_of(unit);
          divided.of->before(unit, UnitPass::kBackward);
          if (flat != nullptr) {
            EXPECT_TRUE(flat->master.eq(3).all().item<bool>());
            flat->grad.fill_(micro_batch * (comm.rank() + 1));
          }
          divided.of->after(unit, UnitPass::kBackward);
          if (flat != nullptr) {
            EXPECT_FALSE(has_memory(flat->master));
          }
        }
      }
      divided.of->finish_step();
      for (int64_t unit = 0; unit < num_units; ++unit)
        if (const layers::FlatValues* flat = divided.decoder->parameters().buffers_of(unit)) {
          EXPECT_FALSE(has_memory(flat->grad));
        }
      EXPECT_TRUE(own.grad.eq((1 + 2) * (1 + 2)).all().item<bool>())
          << "the sum over ranks and micro-batches";
      EXPECT_EQ(divided.of->squares(own.master).item<double>(),
                9.0 * static_cast<double>(own.master.numel()) *
                    (strategy == config::Strategy::kFsdp ? kRanks : 1));
    }
    comm.leave();
  });
}

/// The unit that followed is gathered ahead, and never with the values of before an update.
TEST(Sharded, GathersAheadWhatFollowed) {
  test::run_ranks(kRanks, [](Communicator& comm) {
    Divided divided(comm, config::Strategy::kFsdp, lora_over_nf4());
    at::Tensor bytes;  // of unit 1
    const auto bytes_now = [&] { return divided.decoder->units()[1].frozen.bytes(); };
    const auto use = [&](int64_t unit) {
      EXPECT_EQ(divided.of->await_frozen(unit),
                has_memory(divided.decoder->units()[unit].frozen.bytes()));
      divided.of->before(unit, UnitPass::kForward);
      if (unit == 1) bytes = bytes_now().clone();
      divided.of->after(unit, UnitPass::kForward);
    };
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t unit = 0; unit < 3; ++unit) use(unit);
    const int64_t calls = comm.counts().all_gather.calls;
    divided.of->before(0, UnitPass::kForward);
    EXPECT_GT(comm.counts().all_gather.calls, calls + 1) << "unit 1, too";
    EXPECT_TRUE(divided.of->await_frozen(1));
    EXPECT_TRUE(at::equal(bytes_now(), bytes)) << "before the unit is used";
    EXPECT_FALSE(divided.of->await_frozen(2));
    divided.of->after(0, UnitPass::kForward);
    // An update while unit 1 is being gathered.
    const layers::FlatValues& own = divided.of->owned().flat;
    own.master.fill_(2);
    divided.decoder->parameters().compute_changed();
    divided.of->before(1, UnitPass::kForward);
    EXPECT_TRUE(divided.decoder->parameters().buffers_of(1)->master.eq(2).all().item<bool>());
    divided.of->after(1, UnitPass::kForward);
    comm.leave();
  });
}

}  // namespace
}  // namespace sftrun::parallel
