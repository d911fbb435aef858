#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Finds which rank has made a collective of NCCL fail.
namespace sftrun::parallel {

/// What a rank has called on a group, and how far its device is with it.
struct CallState {
  int64_t called = 0;       ///< calls of the host so far, from 1
  int64_t done = 0;         ///< the first calls whose results the device has, without a gap
  std::string last;         ///< the newest call: "all_reduce"; "": none
  std::string open;         ///< the call after `done`; "": all are done
  bool is_reached = false;  ///< the device has come to the open call
  bool is_waited = false;   ///< the device's stream waits for the open call
  bool is_inside = false;   ///< the host is still in the newest call
  double open_s = 0;  ///< since the host entered the open call, or since its stream waits for it
};

struct GroupCalls {
  std::string key;         ///< the same on all ranks of the group
  std::string name;        ///< "tp (ranks 2 and 3)"; "": all ranks
  std::vector<int> ranks;  ///< of the run
  CallState calls;
};

/// What a rank says when a collective has failed.
struct RankCalls {
  int rank = 0;
  bool has_answered = true;
  int64_t order = 0;       ///< 1: the first rank on which a collective failed; 0: none did
  std::string group;       ///< key of the group of that collective
  std::string what;        ///< that collective
  std::string error;       ///< of NCCL; "": it was not done in time
  bool is_remote = false;  ///< the error says no more than that another rank is lost
  std::vector<GroupCalls> groups;
};

struct CommVerdict {
  std::string what;         ///< the collective that hangs or failed: "all_reduce"
  std::string group;        ///< its group's name
  int64_t call = 0;         ///< its number in the group; 0: unknown
  std::vector<int> guilty;  ///< ranks that the others wait for; empty: unknown
  std::string text;         ///< "rank 2 has not called it"
};

/// NCCL's own error comes first, then ranks that do not answer. Of ranks that wait for each other,
/// the one that has not called the collective, or whose GPU has not come to it; if that one waits in
/// another group, the same is asked there.   @param ranks all, by rank; one has failed
CommVerdict find_verdict(const std::vector<RankCalls>& ranks);

}  // namespace sftrun::parallel
