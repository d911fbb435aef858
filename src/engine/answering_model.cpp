#include "answering_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <vector>

#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/model/generation_batch.h"

namespace sftrun::engine {
namespace {

/// The units that this rank uses: its own, and those whose tensors these read, too.
std::set<int64_t> units_of(const model::Decoder& decoder) {
  std::set<int64_t> units;
  const layers::UnitRange held = decoder.held_units();
  for (int64_t unit = held.first; unit < held.end; ++unit) {
    const std::vector<int64_t>& also = decoder.units()[static_cast<size_t>(unit)].also_reads;
    units.insert(unit);
    units.insert(also.begin(), also.end());
  }
  return units;
}

/// As much memory as these units take that have none now. No rank waits for another one meanwhile.
std::vector<at::Tensor> room_for_units(model::Decoder& decoder) {
  std::vector<at::Tensor> room;
  const auto add = [&](const at::Tensor& flat) {
    if (flat.defined() && flat.storage().data() == nullptr) room.push_back(at::empty_like(flat));
  };
  for (const int64_t unit : units_of(decoder)) {
    add(decoder.units()[static_cast<size_t>(unit)].frozen.bytes());
    const layers::FlatValues* trained = decoder.parameters().buffers_of(unit);
    if (trained == nullptr) continue;
    add(trained->compute);
    if (!trained->compute.is_same(trained->master)) add(trained->master);
  }
  return room;
}

}  // namespace

struct AnsweringModel::Whole::Units {
  Units(parallel::Strategy& of_strategy, model::Decoder& of_decoder)
      : strategy(of_strategy), decoder(of_decoder), units(units_of(of_decoder)) {
    for (const int64_t unit : units) {
      strategy.before(unit, layers::UnitPass::kForward);
      decoder.joints().unit_arrived(unit);
    }
  }
  ~Units() {
    for (const int64_t unit : units) {
      decoder.joints().unit_leaves(unit);
      strategy.after(unit, layers::UnitPass::kForward);
    }
  }
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;

  parallel::Strategy& strategy;
  model::Decoder& decoder;
  std::set<int64_t> units;
};

AnsweringModel::Whole::Whole(AnsweringModel& model) {
  if (model.gathers_whole_) units_ = std::make_unique<Units>(model.in_.strategy, model.in_.decoder);
}

AnsweringModel::Whole::~Whole() = default;

parallel::MeshCopy AnsweringModel::ranks_of_copy() const {
  return {in_.groups, in_.strategy, in_.decoder.options().device,
          /*gathers_units=*/!gathers_whole_};
}

int AnsweringModel::answer(const SharedAnswers& shared) {
  try {
    return answer_records(shared);
  } catch (const model::NotFiniteError& error) {
    throw model::NotFiniteError(
        error.message(), error.where(),
        "set model.dtype: fp32; if that does not help, the weights are broken");
  }
}

std::string AnsweringModel::own_lack_of_memory(const Room& wanted) const {
  const at::NoGradGuard no_grad;
  try {
    std::vector<at::Tensor> room;
    if (gathers_whole_) room = room_for_units(in_.decoder);
    const uint64_t of_row = model::GenerationBatch(in_.decoder, wanted.rows, {})
                                .bytes_of_sequence(static_cast<int64_t>(wanted.length));
    const auto device = at::TensorOptions().device(in_.decoder.options().device);
    const at::Tensor cache =
        at::empty({static_cast<int64_t>(of_row * wanted.rows)}, device.dtype(at::kByte));
    const at::Tensor logits =
        at::empty({static_cast<int64_t>(wanted.rows), in_.decoder.arch().vocab_size}, device);
    return {};
  } catch (const c10::OutOfMemoryError& error) {
    return fmt::format("not enough memory to write answers: {} and a cache for {}: {}",
                       gathers_whole_ ? "each device needs the whole model" : "the model",
                       counted(wanted.rows, "answer"), error.what_without_backtrace());
  }
}

bool AnsweringModel::is_anywhere(bool is_here) const {
  const auto ranks = in_.rank.comm().all_gather(std::vector<double>{is_here ? 1.0 : 0.0});
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank[0] != 0; });
}

std::string AnsweringModel::lack_of_memory(const Room& room) {
  std::string lack = own_lack_of_memory(room);
  bool is_lacking = is_anywhere(!lack.empty());
  if (is_lacking && in_.shards_weights) {
    gathers_whole_ = false;
    lack = own_lack_of_memory(room);
    is_lacking = is_anywhere(!lack.empty());
    if (!is_lacking && in_.rank.is_main()) {
      log::info(
          "answers: the whole model does not fit beside training, so the weights are gathered "
          "layer by layer for each token");
    }
  }
  if (!is_lacking) return {};
  return lack.empty() ? "another rank lacks memory to write answers" : lack;
}

}  // namespace sftrun::engine
