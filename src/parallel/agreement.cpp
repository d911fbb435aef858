#include "sftrun/parallel/agreement.h"

#include "sftrun/core/utf8.h"

namespace sftrun::parallel {
namespace {

constexpr size_t kMaxBytes = 500;

/// The bytes of a text as doubles, which every rank can gather: its length, then each byte.
std::vector<double> as_numbers(std::string text) {
  if (text.size() > kMaxBytes) {
    size_t end = kMaxBytes;
    while (end > 0 && is_continuation_byte(text[end])) --end;
    text.resize(end);
  }
  std::vector<double> numbers(1 + kMaxBytes);
  numbers[0] = static_cast<double>(text.size());
  for (size_t i = 0; i < text.size(); ++i)
    numbers[1 + i] = static_cast<double>(static_cast<unsigned char>(text[i]));
  return numbers;
}

std::string as_text(const std::vector<double>& numbers) {
  std::string text;
  for (size_t i = 0; i < static_cast<size_t>(numbers[0]); ++i)
    text += static_cast<char>(static_cast<unsigned char>(numbers[1 + i]));
  return text;
}

}  // namespace

std::optional<Disagreement> find_disagreement(
    Communicator& comm, const std::string& name, const std::string& value,
    const std::function<std::string(const std::string& of_rank_0)>& describe) {
  if (comm.world_size() == 1) return std::nullopt;
  const std::string first = comm.broadcast(name, value);
  const auto ranks = comm.all_gather(as_numbers(value == first ? "" : describe(first)));
  for (size_t rank = 1; rank < ranks.size(); ++rank)
    if (ranks[rank][0] > 0) return Disagreement{static_cast<int>(rank), as_text(ranks[rank])};
  return std::nullopt;
}

}  // namespace sftrun::parallel
