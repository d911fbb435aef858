#!/usr/bin/env python3
"""scripts/package/older_system.py: a program linked from its folder asks for nothing that glibc 2.28 and GCC 8's libstdc++ lack, and runs.

    tests/scripts/older_system_test.py [--cxx g++]

The program uses what each of the newer functions is for. That it also runs on older systems, tests/package/packages_test.py checks.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/package"))
from packages_test import NEWEST, versions_needed  # noqa: E402

SOURCE = r"""
#include <sys/stat.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>
#include <dlfcn.h>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;
struct Constructed { bool is = true; std::string text = "constructed before main"; } constructed;
static bool destroyed_in_order = false;
struct Destroyed { ~Destroyed() { std::puts(destroyed_in_order ? "destroyed after main" : "too early"); std::fflush(stdout); } } destroyed;

#define CHECK(what) do { if (!(what)) { std::printf("line %d: " #what "\n", __LINE__); return 1; } } while (0)

int main(int argc, char** argv) {
  CHECK(argc == 2 && std::strcmp(argv[1], "argument") == 0 && environ != nullptr);
  CHECK(constructed.is && constructed.text.size() == 23);
  struct stat status;
  CHECK(stat("/proc/self/exe", &status) == 0 && S_ISREG(status.st_mode) && lstat("/proc/self/exe", &status) == 0 && S_ISLNK(status.st_mode));
  CHECK(fstat(1, &status) == 0 && stat("/no/such/file", &status) == -1);
  CHECK(std::filesystem::exists("/proc/self") && !std::filesystem::path("a/b").parent_path().empty());
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) entries += !entry.path().empty();
  CHECK(entries >= 3);
  const std::string number = "1.25e3";
  double value = 0;
  CHECK(std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc() && value == 1250);
  std::ostringstream text;
  text << std::exp(1.0) << ' ' << std::pow(2.0, 0.5) << ' ' << std::log(10.0);
  CHECK(text.str() == "2.71828 1.41421 2.30259");

  // Waits of the steady clock: until told, and until a time.
  std::mutex mutex;
  std::condition_variable told;
  bool is_told = false;
  std::thread other([&] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); std::lock_guard lock(mutex); is_told = true; told.notify_all(); });
  { std::unique_lock lock(mutex); CHECK(told.wait_for(lock, std::chrono::seconds(30), [&] { return is_told; })); }
  other.join();
  const auto start = std::chrono::steady_clock::now();
  { std::unique_lock lock(mutex); CHECK(told.wait_until(lock, start + std::chrono::milliseconds(60)) == std::cv_status::timeout); }
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(55));
  auto answer = std::async(std::launch::async, [] { return std::make_shared<int>(42); });
  CHECK(*answer.get() == 42);
  try { std::rethrow_exception(std::make_exception_ptr(std::runtime_error("thrown"))); } catch (const std::exception& error) { CHECK(std::string(error.what()) == "thrown"); }
  std::random_device device;
  CHECK(device() != device() || device() != device());

  for (int signal = 1; signal < 32; ++signal) { const char* name = sigabbrev_np(signal); if (name) std::printf("%d=%s ", signal, name); }
  std::puts("");
  CHECK(sigabbrev_np(0) == nullptr && sigabbrev_np(1000) == nullptr);
  CHECK(dlsym(dlopen(nullptr, RTLD_NOW), "malloc") != nullptr);

  // Files from 3 on are closed in the program that is spawned, others not.
  const int open_file = open("/dev/null", O_RDONLY);
  CHECK(open_file >= 3);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  CHECK(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
  const std::string test = "test -e /proc/self/fd/1 && ! test -e /proc/self/fd/" + std::to_string(open_file);
  const char* const words[] = {"sh", "-c", test.c_str(), nullptr};
  pid_t child = 0;
  CHECK(posix_spawnp(&child, "sh", &actions, nullptr, const_cast<char**>(words), environ) == 0);
  int code = -1;
  CHECK(waitpid(child, &code, 0) == child && code == 0);
  destroyed_in_order = true;
  return 0;
}
"""


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAIL {' '.join(map(str, command[:3]))} …\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cxx", default="g++")
    cxx = parser.parse_args().cxx
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "program.cpp").write_text(SOURCE)
        run(sys.executable, ROOT / "scripts/package/older_system.py", folder / "older", "--cxx", cxx)
        run(cxx, "-std=c++20", "-O1", "-c", folder / "program.cpp", "-o", folder / "program.o")
        older = folder / "older"
        run(cxx, folder / "program.o", "-o", folder / "program", f"-B{older}/", f"-L{older}", "-Wl,--exclude-libs,ALL",
            "-Wl,--push-state,--no-as-needed", "-lpthread", "-ldl", "-Wl,--pop-state")
        run(cxx, folder / "program.o", "-o", folder / "usual", "-ldl")
        newer = {need for need in versions_needed(folder / "program") if need[1] > NEWEST[need[0]]}
        # Otherwise this machine is so old that nothing is compared.
        usual = {need for need in versions_needed(folder / "usual") if need[1] > NEWEST[need[0]]}
        said = {name: run(folder / name, "argument") for name in ("program", "usual")}
        for what, is_so, shown in (("a usual program asks for newer symbols", usual, versions_needed(folder / "usual")),
                                   ("this one asks for none", not newer, newer),
                                   ("it does what the usual one does", said["program"] == said["usual"], said),
                                   ("constructors run before main, destructors after", said["program"].endswith("destroyed after main\n"), said)):
            print(("ok   " if is_so else "FAIL ") + what + ("" if is_so else f": {shown}"))
            failed = failed or not is_so
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
