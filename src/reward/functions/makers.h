#pragma once

#include <array>
#include <memory>

#include "sftrun/reward/rewards.h"

namespace sftrun::reward {

/// Makes the function of a row with its settings.
using Maker = std::unique_ptr<Function>(const config::RewardSpec& spec,
                                        const Surroundings& surroundings);
Maker make_exact_match, make_regex, make_number, make_json, make_length, make_format,
    make_repetition, make_rouge_l, make_program, make_http, make_reward_model;

/// The maker of each row of config::kRewards.
inline constexpr auto kMakers = std::to_array<Maker*>(
    {make_exact_match, make_regex, make_number, make_json, make_length, make_format,
     make_repetition, make_rouge_l, make_program, make_http, make_reward_model});
static_assert(kMakers.size() == config::kRewards.size());

}  // namespace sftrun::reward
