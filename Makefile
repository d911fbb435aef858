# `make help` lists the targets. Every target that builds sets the machine up first (scripts/bootstrap.sh).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

BUILD ?= build
PREFIX ?= /usr/local
# One compiler per core, and not more than memory allows: a file that includes LibTorch takes up to 2 GiB.
JOBS ?= $(shell awk -v n="$$(nproc)" '/MemAvailable/ {m = int($$2 / 2097152); print m < 1 ? 1 : m < n ? m : n}' /proc/meminfo)

# Tests wait for processes, timers and disks a part of their time: two more than there are cores.
TEST_JOBS ?= $(shell echo $$(($(JOBS) > 1 ? $(JOBS) + 2 : 1)))

# Options of scripts/bootstrap.sh, as in: make build BOOTSTRAP_FLAGS=--cuda
BOOTSTRAP_FLAGS ?=
# These compile the CUDA code also where there is no GPU: some if there is a compiler, some with one that is installed for them.
build-all test test-full lint: cuda_too = --cuda $(if $(filter cuda-check,$(MAKECMDGOALS)),always,toolkit)
package: cuda_too = --cuda always
bootstrap = scripts/bootstrap.sh $(cuda_too) $(BOOTSTRAP_FLAGS)

CONFIG ?=
# Empty: all GPUs, or as many as the machine file or a file of Accelerate says.
NUM_GPUS ?=
DEEPSPEED_CONFIG ?= configs/deepspeed/zero2.json
# make train-distributed SFTRUN=/usr/local/bin/sftrun CONFIG=… uses that program, and builds nothing.
SFTRUN = $(BUILD)/bin/sftrun
built_program = $(if $(filter command,$(origin SFTRUN)),,build)

# TRAIN_BATCH_SIZE=4 on make's command line or in the environment becomes train.batch_size=4; MODEL_… likewise.
quote = '$(subst ','\'',$(1))'
override_of = $(call quote,$(shell echo $(1) | tr A-Z a-z | sed 's/_/./')=$($(1)))
OVERRIDES = $(foreach v,$(sort $(filter TRAIN_% MODEL_%,$(.VARIABLES))),$(call override_of,$(v)))

# configure PRESET FOLDER OPTIONS: the options of CMakePresets.json, and what scripts/bootstrap.sh found. Compilers are taken from the
# environment, once, when the folder is made. CMake's lists of settings are not printed; its warnings and errors are.
configure = source .cache/bootstrap.env
configure += && CXX="$$SFTRUN_CXX" CUDACXX="$$SFTRUN_NVCC" cmake --preset $(1) -B $(2) $(3) >/dev/null
cuda_if_found = -DSFTRUN_BUILD_CUDA=$${SFTRUN_NVCC:+ON}
run_tests = ctest --test-dir $(1) --output-on-failure -j $(TEST_JOBS)

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	echo
	echo "  Variables: CONFIG=run.yaml NUM_GPUS=2 TRAIN_BATCH_SIZE=… MODEL_MAX_SEQ_LEN=… (any TRAIN_*, MODEL_* key)"
	echo "             DEEPSPEED_CONFIG=$(DEEPSPEED_CONFIG)"
	echo "             JOBS=$(JOBS) PREFIX=$(PREFIX) BOOTSTRAP_FLAGS=--cuda"

.PHONY: setup
setup: ## Find or install what is needed (system packages, LibTorch, CUDA compiler)
	@$(bootstrap)

.PHONY: build
build: setup ## Set up and build the program into build/
	@$(call configure,release,$(BUILD),$(cuda_if_found))
	ninja -C $(BUILD) -j $(JOBS) program

.PHONY: build-all
build-all: setup ## The same with tests and tools
	@$(call configure,release,$(BUILD),$(cuda_if_found))
	ninja -C $(BUILD) -j $(JOBS)

.PHONY: test
test: setup ## Set up, build and run every test
	@# The reference stack is installed while the program is compiled; what is found of it is found by the second configuring.
	$(call configure,release,$(BUILD),$(cuda_if_found) -DSFTRUN_FULL_TESTS=OFF)
	$(bootstrap) --reference > $(BUILD)/reference.log 2>&1 & reference=$$!
	ninja -C $(BUILD) -j $(JOBS)
	wait $$reference || { cat $(BUILD)/reference.log; exit 5; }
	cat $(BUILD)/reference.log
	$(call configure,release,$(BUILD),$(cuda_if_found) -DSFTRUN_FULL_TESTS=OFF)
	ninja -C $(BUILD) -j $(JOBS)
	status=0; $(call run_tests,$(BUILD)) --output-junit tests.xml || status=$$?
	tests/support/require_tests.py $(BUILD)/tests.xml || status=1
	exit $$status

.PHONY: test-full
test-full: setup ## Every case of every test, where `make test` runs a part of the long ones (hours)
	@$(bootstrap) --reference --vllm --trackers
	$(call configure,release,$(BUILD),$(cuda_if_found) -DSFTRUN_FULL_TESTS=ON)
	ninja -C $(BUILD) -j $(JOBS)
	$(call run_tests,$(BUILD))

.PHONY: test-fast
test-fast: build-all ## Unit tests only: no reference stack, no runs of several processes
	@$(call run_tests,$(BUILD)) -L unit

KILLS ?= 200
COMBINED_KILLS ?= 60
STALLS ?= 50
COMBINED_STALLS ?= 30
DAMAGES ?= 500
INPUTS ?= 2000
SEED ?= 1
.PHONY: trials
trials: build ## Kill and stall runs, damage their files, feed hostile input: KILLS=200 STALLS=50 DAMAGES=500 INPUTS=2000 SEED=1 (about an hour)
	@tests/smoke/random_kills.py --sftrun $(SFTRUN) --kills $(KILLS) --seed $(SEED)
	tests/smoke/random_kills.py --sftrun $(SFTRUN) --combined --kills $(COMBINED_KILLS) --seed $(SEED)
	tests/smoke/stalls.py --sftrun $(SFTRUN) --stalls $(STALLS) --seed $(SEED)
	tests/smoke/stalls.py --sftrun $(SFTRUN) --combined --stalls $(COMBINED_STALLS) --seed $(SEED)
	tests/smoke/damaged_files.py --sftrun $(SFTRUN) --cases $(DAMAGES) --seed $(SEED)
	tests/smoke/hostile_input.py --sftrun $(SFTRUN) --mutations $(INPUTS) --seed $(SEED)

.PHONY: smoke
smoke: $(built_program) ## Train a tiny random model on the toy set (data/toy) with two processes, and check what came out; under a minute
	@SFTRUN=$(call quote,$(SFTRUN)) scripts/smoke/run.sh

.PHONY: demo
demo: build ## Fine-tune a real model on real data with two processes; show before and after
	@BUILD=$(BUILD) scripts/demo/run.sh

.PHONY: demo-vision
demo-vision: build ## Train a small vision-language model on made pictures; show pictures with answers before and after
	@BUILD=$(BUILD) scripts/demo_vision/run.sh

.PHONY: demo-grpo
demo-grpo: build ## Train the demo's model on rewards for its own answers; show answers before and after
	@BUILD=$(BUILD) scripts/demo_grpo/run.sh

needs_config = if [ -z "$(CONFIG)" ]; then echo "error: which run? make $@ CONFIG=run.yaml" >&2; exit 2; fi
run_arguments = --config $(call quote,$(CONFIG)) $(if $(NUM_GPUS),--nproc-per-node $(NUM_GPUS)) $(OVERRIDES)
# A run on the toy set should not be mistaken for one on the reader's data. Errors of the configuration are left to the run.
say_toy = { $(SFTRUN) config show --config $(call quote,$(CONFIG)) --json $(OVERRIDES) 2>/dev/null || true; } | scripts/smoke/say_toy.py $(call quote,$(CONFIG))
deepspeed_arguments = --deepspeed $(call quote,$(DEEPSPEED_CONFIG))
find_run_directory = run_directory=$$($(SFTRUN) config show --config $(call quote,$(CONFIG)) --json $(OVERRIDES) |
find_run_directory += python3 -c 'import json, sys; print(json.load(sys.stdin)["output"]["dir"])')

.PHONY: train-distributed
train-distributed: $(built_program) ## Train CONFIG=run.yaml on NUM_GPUS= devices (all, or what the machine file says), with TRAIN_*= and MODEL_*= overrides
	@$(needs_config)
	$(say_toy)
	$(SFTRUN) train $(run_arguments)

.PHONY: train-distributed-tb
train-distributed-tb: $(built_program) ## The same while TensorBoard shows the run (TENSORBOARD_PORT=6006)
	@$(needs_config)
	$(say_toy)
	$(find_run_directory)
	scripts/with_tensorboard.sh "$$run_directory" $(SFTRUN) train $(run_arguments)

.PHONY: train-deepspeed
train-deepspeed: $(built_program) ## Train with the settings of DEEPSPEED_CONFIG=, a JSON file of DeepSpeed (default configs/deepspeed/zero2.json)
	@$(needs_config)
	$(say_toy)
	$(SFTRUN) train $(run_arguments) $(deepspeed_arguments)

.PHONY: train-deepspeed-tb
train-deepspeed-tb: $(built_program) ## The same while TensorBoard shows the run
	@$(needs_config)
	$(say_toy)
	$(find_run_directory)
	scripts/with_tensorboard.sh "$$run_directory" $(SFTRUN) train $(run_arguments) $(deepspeed_arguments)

.PHONY: setup-accelerate
setup-accelerate: $(built_program) ## Ask about this machine (devices, dtype, machines); every run on it uses the answers
	@$(SFTRUN) config init --machine

.PHONY: gpu-info
gpu-info: $(built_program) ## The GPUs of this machine; without one, its CPU and memory
	@$(SFTRUN) gpu-info

.PHONY: memory-check
memory-check: $(built_program) ## Plan the memory of CONFIG=run.yaml on NUM_GPUS= devices (all); without CONFIG= the memory in use
	@if [ -n "$(CONFIG)" ]; then $(SFTRUN) memory-check $(run_arguments); else $(SFTRUN) memory-check; fi

.PHONY: bench
bench: ## Tokens per second, memory and time to the first step beside transformers + peft: LoRA, QLoRA, chat data, images; image processors
	@$(bootstrap) --reference
	$(call configure,release,$(BUILD),$(cuda_if_found))
	ninja -C $(BUILD) -j $(JOBS) sftrun sftrun_engine image_processor_speed
	scripts/demo/prepare.py
	.venv-ref/bin/python bench/run.py --sftrun $(SFTRUN)
	.venv-ref/bin/python bench/run.py --sftrun $(SFTRUN) --quant nf4
	.venv-ref/bin/python bench/run.py --sftrun $(SFTRUN) --chat
	.venv-ref/bin/python bench/run.py --sftrun $(SFTRUN) --chat --quant nf4
	.venv-ref/bin/python bench/vision.py --sftrun $(SFTRUN)
	[ -d .cache/torchvision ] || .venv-ref/bin/python -m pip install --disable-pip-version-check -q --no-deps --target .cache/torchvision -r scripts/requirements-torchvision.txt
	.venv-ref/bin/python bench/image_processor_speed.py $(BUILD)/bin/image_processor_speed

.PHONY: gpu-check
gpu-check: ## On a machine with a GPU: kernels and models beside the CPU, training, NCCL, benchmarks; into bench/gpu-check.json
	@$(bootstrap) --reference
	$(call configure,release,$(BUILD),$(cuda_if_found))
	ninja -C $(BUILD) -j $(JOBS) sftrun sftrun_engine sftrun_cuda gpu_tests quant_bandwidth adapter_bandwidth attention_speed
	scripts/gpu/check.py --build $(BUILD) --also compare shapes --budget 5400 --limit compare=3000 --limit shapes=900

.PHONY: cuda-check
cuda-check: build-all ## The CUDA path without a GPU, whole: every family, quantised base and optimizer (tests/cuda; about an hour)
	@ctest --test-dir $(BUILD) --output-on-failure -R '(^|/)Cuda|^cuda[.](gpu_tests|stand_in|kernel_report|host_backed_tests|memory_plan|strategies|rehearsal)|^Emulator'
	tests/cuda/device_parity.py --root $(BUILD)/host-backed --all
	tests/cuda/runtime/runtime_test.py --sftrun $(SFTRUN) --stand-in $(BUILD)/stand-in-runtime --all \
	  --torch-lib "$$(sed -n 's/^SFTRUN_TORCH_ROOT:PATH=//p' $(BUILD)/CMakeCache.txt)/lib"
	scripts/gpu/kernel_report.py --check --cache $(BUILD)/kernel-report --nvcc "$$(source .cache/bootstrap.env && echo $$SFTRUN_NVCC)"

.PHONY: install
install: build ## Install below PREFIX= (default /usr/local)
	@cmake --install $(BUILD) --prefix $(call quote,$(PREFIX))

.PHONY: release
release: ## Build into build-release/ with CUDA code for every supported GPU
	@$(bootstrap) --cuda always
	$(call configure,cuda-release,build-release,$(cuda_if_found))
	ninja -C build-release -j $(JOBS)

# Packages: https://packaging.python.org, and docs/packages.md.
PACKAGE_CUDA_ARCHS ?= release
.PHONY: package
package: setup ## A Python wheel, an archive and a .deb, for every Linux with glibc 2.28 or newer, into dist/
	@scripts/package/build.sh --jobs $(JOBS) --cuda-archs $(call quote,$(PACKAGE_CUDA_ARCHS))
	rm -rf dist
	scripts/package/make.py build-package/tree --out dist

.PHONY: package-check
package-check: ## What is in the packages of dist/; as root also runs of them in Debian 11 and 12 and in Ubuntu 20.04
	@source .cache/bootstrap.env
	tests/package/packages_test.py --packages dist --torch "$$SFTRUN_TORCH_ROOT"

# Whole suites under sanitizers: our code is compiled for them, LibTorch is not (tests/sanitizers/*.supp list what follows from that).
# -O1, because more optimisation would hide or move errors. ctest takes the options of the sanitizers from CMakePresets.json.
.PHONY: asan
asan: ## The whole suite under AddressSanitizer and UndefinedBehaviorSanitizer (build-asan/)
	@$(bootstrap) --reference
	$(call configure,asan,build-asan)
	ninja -C build-asan -j $(JOBS)
	ctest --preset asan -j $(JOBS)

.PHONY: tsan
tsan: ## The whole suite under ThreadSanitizer (build-tsan/)
	@$(bootstrap) --reference
	$(call configure,tsan,build-tsan)
	ninja -C build-tsan -j $(JOBS)
	ctest --preset tsan -j $(JOBS)

SECONDS_EACH ?= 600
.PHONY: fuzz
fuzz: ## The readers of files under libFuzzer, SECONDS_EACH=600 for each (build-fuzz/)
	@$(bootstrap) --lint
	cmake --preset fuzz >/dev/null
	ninja -C build-fuzz -j $(JOBS) fuzzers
	tests/fuzz/run.py --build build-fuzz --seconds $(SECONDS_EACH) --jobs $(JOBS)

SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh' '*.inl')

.PHONY: format
format: ## clang-format every source file
	@$(bootstrap) --lint
	clang-format -i $(SOURCES)

.PHONY: lint
lint: ## clang-format (check), each module as one file (names that clash) and clang-tidy (not of *.cu, whose command lines it does not know); slow
	@$(bootstrap) --lint
	clang-format --dry-run --Werror $(SOURCES)
	$(call configure,joint,build-joint)
	ninja -C build-joint -j $(JOBS) program
	$(call configure,lint,build-lint,$(cuda_if_found))
	run-clang-tidy -p build-lint -j $(JOBS) -quiet -extra-arg=-Wno-unknown-warning-option -extra-arg=-Wno-unused-command-line-argument '$(CURDIR)/src/.*[.]cpp$$'

.PHONY: docs
docs: build ## Write docs/configuration.md from the program
	@$(SFTRUN) config reference >docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md

.PHONY: fixtures
fixtures: ## Write the test fixtures anew from the reference implementation
	@$(bootstrap) --reference
	for script in scripts/fixtures/make_*.py; do echo "fixtures: $$script"; .venv-ref/bin/python "$$script"; done
