#include "sftrun/parallel/communicator.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <numeric>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "c10d_errors.h"
#include "group_state.h"
#include "nccl_backend.h"
#include "nccl_watch.h"
#include "rank_store.h"
#include "rendezvous.h"
#include "sftrun/core/errno_fix.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/stall.h"
#include "stall_watch.h"

namespace sftrun::parallel {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr std::chrono::seconds kAborting{10};  // how long NCCL's abort may take

Milliseconds to_ms(double seconds) {
  return Milliseconds(static_cast<int64_t>(seconds * 1e3));
}

/// The interface that leads to the master: c10d would take the one of the machine's own name, which
/// is often the loopback.
std::shared_ptr<::gloo::transport::Device> gloo_device(const Identity& identity) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != 0)
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  const std::string address = own_address(identity);
  if (!address.empty()) return c10d::ProcessGroupGloo::createDeviceForHostname(address);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

struct Communicator::Impl {
  Identity identity;
  std::string backend = "none";
  at::Device device = at::kCPU;
  Milliseconds timeout{0};
  std::optional<RankStore> store;  // nullopt: a single process
  std::optional<Activity> own_activity;
  Activity* activity = nullptr;
  std::unique_ptr<StallWatch> watch;
  std::unique_ptr<NcclWatch> nccl_watch;  // null: not NCCL
  Group world;
  std::vector<Group> groups;                   // all, with `world`: shut down in `leave`
  int64_t num_named_groups = 0;                // on every rank the same
  std::map<std::string, int64_t> own_numbers;  // of a single process

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// NCCL's process group warns at exit if it was not shut down. `leave` shuts it down; if the run
  /// failed instead, `shutdown` would wait for the other ranks, so `abort` is called. Another thread
  /// does it, because kernels that never end would keep this one.
  ~Impl() {
    if (backend != "nccl") return;
    if (nccl_watch) nccl_watch->stop();
    auto backends = std::make_shared<std::vector<c10::intrusive_ptr<c10d::Backend>>>();
    for (const Group& group : groups) {
      group.state_->watch = nullptr;
      group.state_->pending.clear();
      if (group.state_->backend) backends->push_back(std::move(group.state_->backend));
      group.state_->backend.reset();
    }
    nccl_watch.reset();
    if (backends->empty()) return;
    auto aborted = std::make_shared<std::promise<void>>();
    std::thread([backends, aborted] {
      for (const auto& each : *backends) {
        try {
          each->abort();
        } catch (const std::exception&) {  // the device or the other ranks are already gone
        }
      }
      backends->clear();
      aborted->set_value();
    }).detach();
    aborted->get_future().wait_for(kAborting);
  }

  /// False for a single process, and after `leave`.
  bool is_connected() const { return !groups.empty(); }
  std::string where() const {
    return fmt::format("rank {} of {}, {}", identity.rank, identity.world_size, backend);
  }

  c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& keys,
                                                 int rank, int size) const {
    if (backend == "nccl") return make_nccl_backend(keys, rank, size, timeout);
    auto gloo = c10d::ProcessGroupGloo::Options::create(timeout);
    gloo->devices.push_back(gloo_device(identity));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(keys, rank, size, gloo);
  }

  void watch_calls(Group::State& state, const std::string& key) {
    state.key = key;
    state.calls = std::make_shared<CallTrace>(device);
    state.watch = nccl_watch.get();
    const bool is_named = state.where.size() > where().size();
    nccl_watch->add({.key = key,
                     .name = is_named ? state.where.substr(where().size() + 2) : "",
                     .ranks = state.ranks,
                     .backend = state.backend,
                     .calls = state.calls});
  }

  /// @param position this rank's index in `ranks`   @param keys where the ranks find each other
  /// @param key names the group, the same on all ranks   @param axes "": no name in reports
  Group connect(const std::vector<int>& ranks, int position,
                const c10::intrusive_ptr<c10d::Store>& keys, const std::string& key,
                const std::string& axes = {}) {
    auto state = std::make_shared<Group::State>();
    state->rank = position;
    state->ranks = ranks;
    state->where = where();
    state->activity = activity;
    if (!axes.empty()) {
      const std::string name = fmt::format("{} ({})", axes, name_ranks(ranks));
      state->number = activity->name_group(name);
      state->where += ", " + name;
    }
    if (!groups.empty()) state->counts = groups.front().state_->counts;
    state->backend = make_backend(keys, position, static_cast<int>(ranks.size()));
    if (nccl_watch) watch_calls(*state, key);
    groups.push_back(Group(state));
    return groups.back();
  }

  template <typename Body>
  void guarded(const char* what, Body&& body) const {
    run_guarded(activity, what, where(), /*group=*/0, std::forward<Body>(body));
  }
};

Communicator::Communicator() : impl_(std::make_unique<Impl>()) {
  impl_->activity = &impl_->own_activity.emplace();
}
Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;
namespace {

std::string fix_for_connecting(std::string_view reason) {
  const bool lacks_descriptors = reason.find(std::strerror(EMFILE)) != std::string_view::npos;
  if (lacks_descriptors) return fix_for_descriptors(EMFILE);
  return "check that rank 0 runs there and that the port is free and reachable; GLOO_SOCKET_IFNAME "
         "or NCCL_SOCKET_IFNAME name the network interface";
}

}  // namespace

Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

void disable_flight_recorder() {
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
}

Communicator Communicator::connect(const Identity& identity, const std::string& backend,
                                   at::Device device, const ConnectOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->identity = identity;
  impl->device = device;
  impl->timeout = to_ms(options.timeout_s);
  impl->activity = options.activity != nullptr ? options.activity : &impl->own_activity.emplace();
  if (identity.world_size == 1) return Communicator(std::move(impl));
  impl->backend = backend;
  std::vector<int> everyone(static_cast<size_t>(identity.world_size));
  std::iota(everyone.begin(), everyone.end(), 0);
  try {
    const WaitScope wait(impl->activity, "rendezvous");
    impl->store.emplace(meet_all_ranks(identity, options), identity, impl->where(),
                        *impl->activity);
    if (backend == "nccl") {
      prepare_nccl(identity.rank == 0);
      impl->nccl_watch =
          std::make_unique<NcclWatch>(NcclWatch::Options{.identity = identity,
                                                         .where = impl->where(),
                                                         .timeout_s = options.timeout_s,
                                                         .answer_s = options.answer_s,
                                                         .end_process = options.end_process});
    }
    impl->world = impl->connect(everyone, identity.rank, impl->store->keys(), "world");
    if (options.reports_stalls)
      impl->watch = std::make_unique<StallWatch>(identity, options, *impl->activity);
  } catch (const Error&) {
    throw;
  } catch (const StoppedWaiting&) {
    throw;
  } catch (const std::exception& e) {
    throw CommError(
        fmt::format("rank {} could not connect to {}: {}", identity.rank,
                    counted(identity.world_size - 1, "other rank"), first_line(e.what())),
        fmt::format("{}:{} ({})", identity.master_addr, identity.master_port, backend),
        fix_for_connecting(e.what()));
  }
  return Communicator(std::move(impl));
}

int Communicator::rank() const {
  return impl_->identity.rank;
}
int Communicator::world_size() const {
  return impl_->identity.world_size;
}
std::string Communicator::backend() const {
  return impl_->backend;
}
const CollectiveCounts& Communicator::counts() const {
  return *impl_->world.state_->counts;
}
void Communicator::set_counts(const CollectiveCounts& counts) {
  *impl_->world.state_->counts = counts;
}
Group& Communicator::world() {
  return impl_->world;
}

Group Communicator::make_group(const std::vector<int>& ranks, const std::string& name,
                               const GroupOptions& options) {
  if (!impl_->is_connected()) return {};
  const int64_t number = impl_->num_named_groups++;
  if (!options.is_own && static_cast<int>(ranks.size()) == world_size()) return impl_->world;
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end() || ranks.size() == 1) {
    Group alone;
    alone.state_->ranks = {rank()};
    return alone;
  }
  Group group;
  impl_->guarded("connecting a group", [&] {
    const std::string key = fmt::format("group/{}-{}", name, number);
    group = impl_->connect(ranks, static_cast<int>(own - ranks.begin()),
                           c10::make_intrusive<c10d::PrefixStore>(key, impl_->store->keys()), key,
                           options.axes);
  });
  return group;
}

std::vector<std::vector<double>> Communicator::all_gather(const std::vector<double>& values) {
  if (!impl_->is_connected()) return {values};
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor own = at::empty({static_cast<int64_t>(values.size())}, options);
  std::copy(values.begin(), values.end(), own.data_ptr<double>());
  // One copy to the host, whatever the number of ranks.
  const at::Tensor host = all_gather_tensor(own.to(impl_->device)).cpu();
  throw_if_failed();
  std::vector<std::vector<double>> gathered;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto* of_rank = host.const_data_ptr<double>() + rank * host.size(1);
    gathered.emplace_back(of_rank, of_rank + host.size(1));
  }
  return gathered;
}

std::vector<std::string> Communicator::all_gather_texts(const std::string& text) {
  std::vector<size_t> sizes;
  for (const auto& of_rank : all_gather(std::vector<double>{static_cast<double>(text.size())}))
    sizes.push_back(static_cast<size_t>(of_rank[0]));
  const size_t longest = std::max<size_t>(1, *std::max_element(sizes.begin(), sizes.end()));
  const at::Tensor own = at::zeros({static_cast<int64_t>(longest)}, at::kByte);
  std::copy(text.begin(), text.end(), own.data_ptr<uint8_t>());
  const at::Tensor all = all_gather_tensor(own.to(impl_->device)).cpu().contiguous();
  throw_if_failed();
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto* of_rank = all.const_data_ptr<uint8_t>() + rank * longest;
    texts.emplace_back(of_rank, of_rank + sizes[rank]);
  }
  return texts;
}

at::Tensor Communicator::all_gather_tensor(const at::Tensor& values) {
  if (!impl_->is_connected()) return values.unsqueeze(0);
  const at::Tensor all = at::empty({world_size() * values.numel()}, values.options());
  impl_->world.all_gather_into(all, values);
  return all.view({world_size(), values.numel()});
}

void Communicator::throw_if_failed() const {
  if (impl_->nccl_watch) impl_->nccl_watch->check();
}

void Communicator::barrier(const std::string& name) {
  if (!impl_->is_connected()) return;
  throw_if_failed();
  impl_->store->barrier(name);
  throw_if_failed();
}

void Communicator::await_call(int rank) {
  if (impl_->is_connected()) impl_->store->await_call(rank);
}

void Communicator::call() {
  if (impl_->is_connected()) impl_->store->call();
}

void Communicator::leave() {
  barrier("end");
  if (!impl_->is_connected()) return;
  // All ranks have finished all collectives, but the store must still be reachable.
  impl_->watch.reset();
  if (impl_->nccl_watch) impl_->nccl_watch->stop();
  for (const Group& group : impl_->groups) {
    if (impl_->backend == "nccl")
      impl_->guarded("shutting NCCL down", [&] { group.state_->backend->shutdown(); });
    group.state_->backend.reset();
    group.state_->watch = nullptr;
  }
  impl_->nccl_watch.reset();
  impl_->groups.clear();
  impl_->store->leave();
}

void Communicator::abandon(const std::string& why) noexcept {
  if (!impl_->is_connected()) return;
  if (impl_->nccl_watch) impl_->nccl_watch->stop();
  impl_->store->abandon(why);
}

Activity& Communicator::activity() {
  return *impl_->activity;
}

std::string Communicator::broadcast(const std::string& name, const std::string& text) {
  return impl_->is_connected() ? impl_->store->broadcast(name, text) : text;
}

int64_t Communicator::add(const std::string& name, int64_t amount) {
  if (!impl_->is_connected()) return impl_->own_numbers[name] += amount;
  return impl_->store->add(name, amount);
}

}  // namespace sftrun::parallel
