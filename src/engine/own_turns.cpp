#include "own_turns.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "turn_seed.h"

namespace sftrun::engine {

int OwnTurns::write(const Turns& turns) {
  const config::RolloutsConfig& rollouts = config_.train.rollouts;
  const TextGenerator generator(text_,
                                {.max_new_tokens = rollouts.max_new_tokens,
                                 .temperature = rollouts.temperature,
                                 .top_p = rollouts.top_p,
                                 .top_k = rollouts.top_k,
                                 .min_p = rollouts.min_p,
                                 .seed = seed_of_turns(config_.train.seed, turns.number),
                                 .stop_tokens = {},
                                 .keeps_logprobs = true},
                                {});
  const at::NoGradGuard no_grad;
  const AnsweringModel::Whole whole(model_);
  parallel::MeshCopy copy = model_.ranks_of_copy();
  return AnsweringModel::answer({.name = turns.name,
                                 .rank = model_.rank(),
                                 .generator = generator,
                                 .decoder = model_.decoder(),
                                 .copy = &copy,
                                 .batch_size = static_cast<size_t>(rollouts.batch_size),
                                 .records = turns.answers,
                                 .answers_per_record = turns.answers_per_prompt,
                                 .dealt = model_.share(),
                                 .logs_end = false,
                                 .prompt = turns.prompt,
                                 .on_answer = turns.on_answer,
                                 .place = turns.place,
                                 .max_new_tokens = turns.max_new_tokens});
}

void OwnTurns::rehearse(int64_t length) {
  const int64_t of_rank =
      *config_.train.global_batch_size.value / static_cast<int64_t>(model_.share().parts);
  const std::string lack = model_.lack_of_memory(
      {.rows =
           static_cast<size_t>(std::clamp<int64_t>(of_rank, 1, config_.train.rollouts.batch_size)),
       .length = static_cast<size_t>(length)});
  if (!lack.empty())
    throw NoMemoryForAnswers(lack, "train.rollouts",
                             "lower train.rollouts.batch_size or train.rollouts.max_new_tokens");
}

}  // namespace sftrun::engine
