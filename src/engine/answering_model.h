#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rank.h"
#include "sftrun/core/error.h"
#include "sftrun/model/decoder.h"
#include "sftrun/parallel/mesh_copy.h"
#include "sftrun/parallel/mesh_groups.h"
#include "sftrun/parallel/strategy.h"
#include "shared_answers.h"

namespace sftrun::engine {

/// Training may fit where answers do not: a smaller micro-batch would not help.
class NoMemoryForAnswers : public OutOfMemoryError {
  using OutOfMemoryError::OutOfMemoryError;
};

/// The model of a training run, which answers prompts between steps with the weights that train, and
/// without a copy of them. Ranks that have one copy of the model together answer together; where its
/// weights are sharded each rank gathers all that it uses meanwhile, or, if there is no memory for
/// that, layer by layer.
class AnsweringModel {
 public:
  struct Inputs {
    model::Decoder& decoder;
    parallel::MeshGroups& groups;
    parallel::Strategy& strategy;
    bool shards_weights;  ///< the strategy gathers them
    Rank& rank;
  };
  /// All of them must outlive this object.
  explicit AnsweringModel(const Inputs& inputs) : in_(inputs) {}

  Rank& rank() const { return in_.rank; }
  model::Decoder& decoder() const { return in_.decoder; }

  /// What is written at the same time.
  struct Room {
    size_t rows = 1;
    size_t length = 1;  ///< of the longest prompt with its answer, in tokens
  };
  /// Takes the memory of answers and gives it back, so that a lack of it shows when the run starts,
  /// not hours later. Where weights are sharded and whole ones do not fit, they are gathered layer by
  /// layer from now on. All ranks call it.
  /// @return what lacks on any rank, in words of this one; empty: nothing
  std::string lack_of_memory(const Room& room);

  /// All units that this rank uses, whole, while it exists; answers are quicker then.
  class Whole {
   public:
    explicit Whole(AnsweringModel& model);
    ~Whole();
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

   private:
    struct Units;
    std::unique_ptr<Units> units_;  // null: they are gathered in each pass
  };

  /// `answer_records`, with an error that helps where training has made logits that are not finite.
  static int answer(const SharedAnswers& shared);
  /// The ranks that have this rank's copy of the model, for one call of `answer_records`.
  parallel::MeshCopy ranks_of_copy() const;
  /// This rank's copy of the model among all.
  Share share() const {
    return {static_cast<size_t>(in_.strategy.mesh().dp_rank()),
            static_cast<size_t>(in_.strategy.mesh().dp_size())};
  }

 private:
  std::string own_lack_of_memory(const Room& room) const;
  bool is_anywhere(bool is_here) const;

  Inputs in_;
  bool gathers_whole_ = true;
};

}  // namespace sftrun::engine
