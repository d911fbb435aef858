#include "from_all_ranks.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace sftrun::engine {

FromAllRanks from_all_ranks(parallel::Communicator& comm, int exit_code,
                            nlohmann::ordered_json own) {
  using RankJson = nlohmann::ordered_json;
  RankJson sent = {{"exit_code", exit_code}};
  if (exit_code == 0) sent["message"] = std::move(own);
  const std::vector<uint8_t> packed = RankJson::to_msgpack(sent);
  FromAllRanks all;
  for (const std::string& text : comm.all_gather_texts({packed.begin(), packed.end()})) {
    RankJson of_rank = RankJson::from_msgpack(text.begin(), text.end());
    all.exit_code = std::max(all.exit_code, of_rank["exit_code"].get<int>());
    if (all.exit_code == 0) all.messages.push_back(std::move(of_rank["message"]));
  }
  if (all.exit_code != 0) all.messages.clear();
  return all;
}

}  // namespace sftrun::engine
