#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// GPUs by name, for plans of machines that are not here.
namespace sftrun::plan {

struct GpuCard {
  std::string name;           ///< "RTX 4090"
  uint64_t memory_bytes = 0;  ///< that a process can use
  int too_old_sm = 0;         ///< 75: sm_75, for which there are no kernels; 0: a card that trains
};

/// A number of cards of one kind.
struct GpuCards {
  GpuCard card;
  int64_t count = 1;
};

/// Reads "2x RTX4090", "4xH200", "H100-80GB x 8", "NVIDIA A100-SXM4-80GB", "24GB", "2x24GiB", and
/// several of these with commas. Capital letters, spaces, hyphens and makers' names do not matter. A
/// name that several sizes share means the smallest. GB are those of card makers: GiB.
/// @throws ConfigError naming the nearest cards for a name that is not in the table, or for a number
/// of cards that is not between 1 and 100000   @param where the flag, for messages
std::vector<GpuCards> parse_gpu_cards(const std::string& text, const std::string& where);

/// @throws ConfigError if `train` would refuse one of the cards   @param where as above
void require_usable(const std::vector<GpuCards>& cards, const std::string& where);

/// Every card of the table, by name, those that are too old too.
const std::vector<GpuCard>& known_gpu_cards();

}  // namespace sftrun::plan
