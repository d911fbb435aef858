#include "exchange.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "faults.h"
#include "report.h"
#include "settings.h"

namespace stand_in {
namespace {

constexpr size_t kMailBytes = size_t{64} << 10, kWordBytes = 128;

double now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void* open_shared(const std::string& name, size_t size) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  require(file >= 0, "no shared memory for NCCL: ", name);
  require(ftruncate(file, static_cast<off_t>(size)) == 0, "no room in shared memory");
  void* made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  require(made != MAP_FAILED, "shared memory cannot be mapped");
  return made;
}

}  // namespace

/// One message at a time, in pieces.
struct Exchange::Mailbox {
  std::atomic<uint64_t> full;
  char data[kMailBytes];
};

/// Begins as zeros, and every rank may be the first.
struct Exchange::Shared {
  std::atomic<int> arrived, generation, broken;
  char words[kMaxRanks][kWordBytes];
  char slots[kMaxRanks][kSlotBytes];
  Mailbox mail[kMaxRanks][kMaxRanks];
};

Patience::Patience(double seconds) : until_(now() + seconds) {}
Patience::Patience()
    : until_(now() + settings().nccl_seconds), looks_for_faults_(!settings().fault.kind.empty()) {}

bool Patience::wait() {
  ++turns_;
  if (turns_ < 50) {
    std::this_thread::yield();
    return true;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(turns_ < 500 ? 20 : 500));
  if (turns_ % 64 != 0) return true;
  if (looks_for_faults_ && has_fault_happened()) {
    constexpr double kMoment = 0.5;
    until_ = std::min(until_, now() + kMoment);
    looks_for_faults_ = false;
  }
  return now() < until_;
}

Exchange::Exchange(const std::string& key, int rank, int ranks)
    : name_("/sftrun-stand-in-" + key), rank_(rank), ranks_(ranks) {
  require(ranks <= kMaxRanks, "NCCL with ", ranks, " ranks, of ", kMaxRanks, " that are possible");
  shared_ = static_cast<Shared*>(open_shared(name_, sizeof(Shared)));
  meet();
  if (rank == 0) shm_unlink(name_.c_str());  // all have it open: nothing is left behind
}

Exchange::~Exchange() {
  munmap(shared_, sizeof(Shared));
}

bool Exchange::broken() const {
  return shared_->broken != 0;
}

void Exchange::give_up() {
  shared_->broken = 1;
}

bool Exchange::meet() {
  const int generation = shared_->generation;
  if (++shared_->arrived == ranks_) {
    shared_->arrived = 0;
    ++shared_->generation;
    return !broken();
  }
  Patience patience;
  while (shared_->generation == generation) {
    if (broken() || ended_here()) return false;
    if (!patience.wait()) {
      if (!has_fault_happened()) give_up();
      return false;
    }
  }
  return !broken();
}

bool Exchange::agree(const std::string& what) {
  std::strncpy(shared_->words[rank_], what.c_str(), kWordBytes - 1);
  if (!meet()) return false;
  for (int other = 0; other < ranks_; ++other) {
    const std::string theirs = shared_->words[other];
    require(theirs == what.substr(0, kWordBytes - 1), "NCCL: rank ", rank_, " calls ", what,
            ", rank ", other, " calls ", theirs);
  }
  return true;
}

char* Exchange::slot(int rank) const {
  return shared_->slots[rank];
}

Exchange::Mailbox& Exchange::mailbox(int from, int to) const {
  return shared_->mail[from][to];
}

size_t Exchange::send_some(int to, const char* data, size_t size) {
  Mailbox& mail = mailbox(rank_, to);
  if (mail.full != 0) return 0;
  const size_t part = std::min(size, kMailBytes);
  std::memcpy(mail.data, data, part);
  mail.full = part;
  return part;
}

size_t Exchange::receive_some(int from, char* data, size_t size) {
  Mailbox& mail = mailbox(from, rank_);
  const size_t part = mail.full;
  if (part == 0) return 0;
  require(part <= size, "NCCL: rank ", from, " sends rank ", rank_, " more than it receives");
  std::memcpy(data, mail.data, part);
  mail.full = 0;
  return part;
}

}  // namespace stand_in
