#include "sftrun/core/activity.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "sftrun/core/strings.h"

namespace sftrun {
namespace {

constexpr std::array<std::string_view, kNumWorks> kWorks = {
    "starting",
    "loading the model",
    "reading and tokenizing the data",
    "between two parts of a step",
    "in the data loader",
    "in the forward pass",
    "in the backward pass",
    "in the optimizer",
    "in the evaluation",
    "writing a checkpoint",
    "writing the result",
    "writing the metrics",
    "generating text",
};

struct Wait {
  std::string_view what, shown;
};
// The first is no wait; the last is any other.
constexpr std::array<Wait, 12> kWaits = {{{"", ""},
                                          {"all_reduce", "all-reduce"},
                                          {"all_gather", "all-gather"},
                                          {"reduce_scatter", "reduce-scatter"},
                                          {"all_to_all", "all-to-all"},
                                          {"broadcast", "broadcast"},
                                          {"send", "send"},
                                          {"receive", "receive"},
                                          {"barrier", "barrier"},
                                          {"rendezvous", "the rendezvous"},
                                          {"device", kDeviceWait},
                                          {"other", "a collective"}}};

int32_t number_of_wait(std::string_view what) {
  for (size_t i = 1; i + 1 < kWaits.size(); ++i)
    if (kWaits[i].what == what) return static_cast<int32_t>(i);
  return static_cast<int32_t>(kWaits.size()) - 1;
}

int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // one clock for all processes of the machine
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

constexpr uint64_t kLayout = 0x73667472756e0002;  // "sftrun", version 2 of Record
constexpr int32_t kMaxGroups = 15;                // names of groups
constexpr size_t kGroupBytes = 128;               // of a name, with a zero at its end
constexpr int32_t kWaitBits = 8;                  // of `wait`: the collective; above: the group
constexpr size_t kStackAt = 4096, kMapped = 4096;
constexpr int kMaxFrames = 64;
constexpr int kStackSignal = SIGUSR2;
constexpr timespec kPoll{.tv_sec = 0, .tv_nsec = 2'000'000};
constexpr int kMaxPolls = 500;

}  // namespace

struct Activity::Record {
  std::atomic<uint64_t> layout{kLayout};
  std::atomic<int32_t> work{0}, wait{0};  // one value, so that a reader sees the wait of one group
  std::atomic<int64_t> step{0}, since_ns{monotonic_ns()}, waits_done{0};
  std::array<std::atomic<int64_t>, kNumWorks> spent_ns{};
  std::atomic<int32_t> thread{0};   // that answers requests for its stack; 0: none yet
  std::atomic<uint32_t> stacks{0};  // that it has written
  // Written once each, before a wait has its number.
  std::array<std::array<char, kGroupBytes>, kMaxGroups> groups{};
};

namespace {

// A signal handler can use only static variables; all are lock-free.
std::atomic<int> stack_file{-1};
std::atomic<std::atomic<uint32_t>*> stacks_written{nullptr};
static_assert(std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

/// Writes the stack behind the record. backtrace was called before, so it loads nothing here, and
/// backtrace_symbols_fd does not allocate.
void on_stack_request(int) {
  const int saved_errno = errno;
  std::array<void*, kMaxFrames> frames{};
  const int fd = stack_file.load(), count = ::backtrace(frames.data(), kMaxFrames);
  if (::ftruncate(fd, kStackAt) == 0 && ::lseek(fd, kStackAt, SEEK_SET) == kStackAt)
    ::backtrace_symbols_fd(frames.data(), count, fd);
  if (auto* written = stacks_written.load()) written->fetch_add(1);
  errno = saved_errno;
}

/// A worker's 0, 1 and 2 are replaced when it is started.
int above_standard_streams(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  ::close(fd);
  return moved;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? text.get() : name;
}

/// A line of backtrace_symbols_fd, "/lib/libc.so.6(read+0x4d)[0x7f…]", as "read (libc.so.6)".
std::string readable_frame(std::string_view line) {
  const size_t open = line.find('('), close = line.find(')', open);
  if (open == std::string_view::npos || close == std::string_view::npos) return std::string(line);
  const std::string_view path = line.substr(0, open),
                         inside = line.substr(open + 1, close - open - 1);
  const std::string file(path.substr(path.rfind('/') + 1));
  const size_t plus = inside.find('+');
  if (plus == 0 || plus == std::string_view::npos)
    return file + std::string(inside);  // a function that the library does not export
  constexpr size_t kMaxName = 160;      // of a template
  std::string name = demangled(std::string(inside.substr(0, plus)));
  if (name.size() > kMaxName) name = name.substr(0, kMaxName) + "…";
  return name + " (" + file + ")";
}

std::string read_from(int fd, off_t at) {
  std::string text;
  std::array<char, 4096> buffer{};
  ssize_t got;
  while ((got = ::pread(fd, buffer.data(), buffer.size(), at)) > 0) {
    text.append(buffer.data(), static_cast<size_t>(got));
    at += got;
  }
  return text;
}

/// Without the frames of the signal handler, which are the innermost.
std::string readable_stack(const std::string& written) {
  constexpr size_t kMaxShown = 24;
  std::vector<std::string> frames;
  for (const std::string& line : split(written, '\n'))
    if (!line.empty()) frames.push_back(readable_frame(line));
  const auto handler = std::min<size_t>(2, frames.size());  // on_stack_request, the trampoline
  std::string text;
  for (size_t i = handler; i < std::min(frames.size(), handler + kMaxShown); ++i)
    text += (text.empty() ? "" : "\n") + frames[i];
  return text;
}

}  // namespace

std::string_view describe_work(Work work) {
  return kWorks[static_cast<size_t>(work)];
}

Activity::Activity() {
  static_assert(sizeof(Record) <= kStackAt);
  fd_ = above_standard_streams(::memfd_create("sftrun-activity", MFD_CLOEXEC));
  void* memory = MAP_FAILED;
  if (fd_ >= 0 && ::ftruncate(fd_, kMapped) == 0)
    memory = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED)
    memory = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  record_ = new (memory) Record;
}

std::optional<Activity> Activity::from_descriptor(int fd) {
  struct stat file {};
  if (::fstat(fd, &file) != 0 || file.st_size < static_cast<off_t>(kMapped)) return std::nullopt;
  const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0) return std::nullopt;
  void* memory = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  if (memory == MAP_FAILED) {
    ::close(own);
    return std::nullopt;
  }
  Activity activity(static_cast<Record*>(memory), own);
  if (activity.record_->layout != kLayout) return std::nullopt;  // of another version
  return activity;
}

Activity Activity::of_this_process() {
  const char* text = std::getenv("SFTRUN_ACTIVITY_FD");
  if (text == nullptr) return {};
  if (auto inherited = from_descriptor(std::atoi(text))) return std::move(*inherited);
  return {};
}

Activity::Activity(Activity&& other) noexcept
    : record_(std::exchange(other.record_, nullptr)),
      fd_(std::exchange(other.fd_, -1)),
      changed_(std::move(other.changed_)) {}

Activity::~Activity() {
  if (record_ == nullptr) return;
  if (stacks_written.load() == &record_->stacks) {  // a late request is answered by nobody
    stacks_written = nullptr;
    stack_file = -1;
  }
  ::munmap(record_, kMapped);
  if (fd_ >= 0) ::close(fd_);
}

/// Counts the time since the last change.
void Activity::spend(int64_t now_ns) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  if (record_->wait.load(kRelaxed) == 0) {
    auto& spent = record_->spent_ns[static_cast<size_t>(record_->work.load(kRelaxed))];
    spent.store(spent.load(kRelaxed) + now_ns - record_->since_ns.load(kRelaxed), kRelaxed);
  }
  record_->since_ns.store(now_ns, kRelaxed);
}

void Activity::set_step(int64_t step) {
  record_->step.store(step, std::memory_order_relaxed);
}

void Activity::set_work(Work work) {
  spend(monotonic_ns());
  record_->work.store(static_cast<int32_t>(work), std::memory_order_relaxed);
  if (changed_) changed_(work, /*waits=*/false);
}

Work Activity::work() const {
  return static_cast<Work>(record_->work.load(std::memory_order_relaxed));
}

int Activity::name_group(std::string_view name) {
  for (int32_t i = 0; i < kMaxGroups; ++i) {
    char* known = record_->groups[static_cast<size_t>(i)].data();
    const std::string_view kept = name.substr(0, kGroupBytes - 1);
    if (*known == 0) std::memcpy(known, kept.data(), kept.size());
    if (kept == known) return i + 1;
  }
  return 0;
}

void Activity::begin_wait(std::string_view what, int group) {
  spend(monotonic_ns());
  record_->wait.store(number_of_wait(what) | (group << kWaitBits), std::memory_order_release);
  if (changed_) changed_(work(), /*waits=*/true);
}

void Activity::end_wait(bool succeeded) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  spend(monotonic_ns());
  record_->wait.store(0, kRelaxed);
  if (succeeded) record_->waits_done.store(record_->waits_done.load(kRelaxed) + 1, kRelaxed);
  if (changed_) changed_(work(), /*waits=*/false);
}

ActivityState Activity::read() const {
  ActivityState state;
  // Another process's memory: values out of range are taken for the nearest.
  const auto number = [](int32_t value, size_t count) {
    return static_cast<size_t>(std::clamp<int32_t>(value, 0, static_cast<int32_t>(count) - 1));
  };
  state.work = static_cast<Work>(number(record_->work.load(), kNumWorks));
  const int32_t wait = record_->wait.load();
  state.waits_in = kWaits[number(wait & ((1 << kWaitBits) - 1), kWaits.size())].shown;
  if (const size_t group = number(wait >> kWaitBits, kMaxGroups + 1); group > 0)
    state.waits_in += std::string(" of ") + record_->groups[group - 1].data();
  state.step = record_->step.load();
  state.waits_done = record_->waits_done.load();
  const int64_t quiet_ns = monotonic_ns() - record_->since_ns.load();
  state.quiet_s = 1e-9 * static_cast<double>(std::max<int64_t>(0, quiet_ns));
  return state;
}

std::array<double, kNumWorks> Activity::seconds_of_works() {
  spend(monotonic_ns());
  std::array<double, kNumWorks> seconds{};
  for (size_t i = 0; i < kNumWorks; ++i)
    seconds[i] = 1e-9 * static_cast<double>(record_->spent_ns[i].load(std::memory_order_relaxed));
  return seconds;
}

void Activity::answer_stack_requests() {
  if (fd_ < 0) return;
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);  // loads the unwinder, which a handler may not
  stack_file = fd_;
  stacks_written = &record_->stacks;
  struct sigaction action {};
  action.sa_handler = on_stack_request;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (::sigaction(kStackSignal, &action, nullptr) != 0) return;
  record_->thread = static_cast<int32_t>(::syscall(SYS_gettid));
}

std::string Activity::stack(int process) const {
  const int32_t thread = record_->thread;
  if (thread == 0 || fd_ < 0) return {};
  const uint32_t before = record_->stacks;
  if (::syscall(SYS_tgkill, process, thread, kStackSignal) != 0) return {};
  for (int i = 0; record_->stacks == before; ++i) {
    if (i == kMaxPolls) return {};
    ::nanosleep(&kPoll, nullptr);
  }
  return readable_stack(read_from(fd_, kStackAt));
}

WaitScope::WaitScope(Activity* activity, std::string_view what, int group)
    : activity_(activity), exceptions_(std::uncaught_exceptions()) {
  if (activity_ != nullptr) activity_->begin_wait(what, group);
}

WaitScope::~WaitScope() {
  if (activity_ != nullptr) activity_->end_wait(std::uncaught_exceptions() == exceptions_);
}

}  // namespace sftrun
