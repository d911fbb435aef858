#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "exchange.h"

namespace stand_in {

/// Messages of a rank that are on their way while it goes on, as NCCL's are on its streams. Those to
/// one rank arrive in the order in which they were posted.
class Outbox {
 public:
  explicit Outbox(Exchange& ranks) : ranks_(ranks) {}
  ~Outbox();  ///< waits until all have arrived, or a rank is lost
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  void post(int to, std::vector<char> bytes);

 private:
  struct Message {
    int to;
    std::vector<char> bytes;
  };
  void deliver_all();
  bool deliver(const Message& message) const;

  Exchange& ranks_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Message> messages_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace stand_in
