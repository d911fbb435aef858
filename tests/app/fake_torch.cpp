/// A libtorch_cpu.so that an engine can be linked to and then not find.
extern "C" int sftrun_fake_torch() {
  return 1;
}
