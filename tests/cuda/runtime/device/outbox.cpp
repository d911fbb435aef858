#include "outbox.h"

#include <utility>

#include "settings.h"

namespace stand_in {

Outbox::~Outbox() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Outbox::post(int to, std::vector<char> bytes) {
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back({to, std::move(bytes)});
  }
  posted_.notify_one();
  if (!thread_.joinable()) thread_ = std::thread([this] { deliver_all(); });
}

void Outbox::deliver_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return ends_ || !messages_.empty(); });
    if (messages_.empty()) return;
    const Message message = std::move(messages_.front());
    messages_.pop_front();
    lock.unlock();
    const bool came = deliver(message);
    lock.lock();
    if (!came) return;  // the other rank finds out when it waits for the message
  }
}

bool Outbox::deliver(const Message& message) const {
  Patience patience;
  for (size_t done = 0; done < message.bytes.size();) {
    const size_t sent =
        ranks_.send_some(message.to, message.bytes.data() + done, message.bytes.size() - done);
    done += sent;
    if (sent != 0) patience = Patience();
    if (ranks_.broken() || ranks_.ended_here() || (sent == 0 && !patience.wait())) return false;
  }
  return true;
}

}  // namespace stand_in
