extern "C" int sftrun_fake_torch();
extern "C" int sftrun_engine_run(const char*, const char*) {
  return sftrun_fake_torch();
}
