#include "turn_writers.h"

#include "own_turns.h"
#include "served_turns.h"

namespace sftrun::engine {

std::unique_ptr<TurnWriter> make_turn_writer(const TurnWriterInputs& inputs, HeldFailure& failure) {
  if (!inputs.config.train.rollouts.is_by_server())
    return std::make_unique<OwnTurns>(inputs.config, inputs.text, inputs.model);
  return std::make_unique<ServedTurns>(inputs.config, inputs.text, inputs.model,
                                       inputs.adapter.value(), inputs.run_dir, failure);
}

}  // namespace sftrun::engine
