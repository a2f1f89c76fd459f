# symwin. `make help` lists the targets and the variables.
#
# Everything is built under $(BUILD). GPU code is built if nvcc is found (NVCC= switches it off).
# The library, its emulated driver, the examples and the tests need only a C and a C++ compiler.

BUILD  ?= build
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin

# ThreadSanitizer's runtime of clang takes half the time that gcc 12's does. So clang is the default
# for it, if it has one.
ifeq ($(origin CC) $(origin CXX),default default)
CLANG = $(shell echo 'int main() {}' | clang++ -fsanitize=thread -x c++ -o /dev/null - \
            2>/dev/null && echo clang)
endif
THREAD_CXX = $(or $(addsuffix ++,$(CLANG)),$(CXX))
ifeq ($(SANITIZE),thread)
ifneq ($(CLANG),)
CC  := clang
CXX := clang++
# Kernels go through g++ in a third of the time, and run as fast.
KERNEL_CXX := $(shell command -v g++)
endif
endif
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
OBJCOPY  ?= objcopy
# Sanitizer builds take longer to compile than to run, so they are barely optimised.
DEBUG    := -g
# Fortified, as Ubuntu's gcc does by default: a faulty call of the C library ends a test here too.
FORTIFY  := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
CFLAGS   ?= $(if $(SANITIZE),-Og -g1,-O2 $(DEBUG) $(FORTIFY))
CXXFLAGS ?= $(if $(SANITIZE),-Og -g1,-O2 $(DEBUG))

# Parallel by default; -j on the command line overrides it.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
MAKEFLAGS += --no-print-directory --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# ---- where CUDA is, if installed --------------------------------------------------------------

ifeq ($(origin NVCC),undefined)
NVCC := $(firstword $(shell command -v nvcc 2>/dev/null) \
          $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/bin/nvcc)) $(wildcard /usr/local/cuda/bin/nvcc))
endif

# Only tests/helpers/abi_cuda.c reads CUDA's headers. They are looked for beside nvcc and
# in CUDA_HOME.
CUDA_INCLUDE := $(if $(NVCC),$(firstword $(dir $(wildcard \
    $(if $(CUDA_HOME),$(CUDA_HOME)/include/cudaTypedefs.h) \
    $(abspath $(dir $(shell command -v $(NVCC) 2>/dev/null))..)/include/cudaTypedefs.h))))

# GPU architectures: `make ARCH=90` builds one; GENCODE takes nvcc's own options. PTX of compute_90
# is built besides that of compute_80 because multicast instructions need sm_90.
ifeq ($(origin ARCH),command line)
GENCODE ?= -gencode arch=compute_$(ARCH),code=sm_$(ARCH)
endif
# `make run` builds for the GPUs that are here, or for sm_90 where there are none, unless `make` has
# built for all.
ifeq ($(MAKECMDGOALS) $(shell grep -s -o sm_100 $(BUILD)/flags.cu),run )
HERE := $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null))
GENCODE ?= $(foreach arch,$(or $(sort $(HERE)),90),-gencode arch=compute_$(arch),code=sm_$(arch))
endif
GENCODE ?= -gencode arch=compute_80,code=[sm_80,compute_80] \
           -gencode arch=compute_90,code=[sm_90,compute_90] \
           -gencode arch=compute_100,code=sm_100
# GPU code is neither compressed nor has it line numbers: a communicator loads it three times as
# fast when it is created (bench/startup). NVCCFLAGS="-O3 -lineinfo" is for profilers.
NVCCFLAGS ?= -O3 --no-compress

# ---- flags ------------------------------------------------------------------------------------

# SANITIZE=address,undefined or thread: instruments every object, emulated kernels included.
ifdef SANITIZE
SANFLAGS := -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
# gcc's macro, which tests ask for.
ifeq ($(SANITIZE) $(CC),thread clang)
SANFLAGS += -D__SANITIZE_THREAD__=1
endif
# Each of 200 programs has all emulated kernels in it. lld links them in half the time, and in a
# third if it neither merges strings nor starts threads. Not without sanitizers: it wraps more calls
# than GNU ld, and tests of every step have twice as many.
LINKER := $(shell echo 'int main(void) { return 0; }' | \
            $(CC) -fuse-ld=lld -Wl,-O0,--threads=1 -x c -o /dev/null - 2>/dev/null && \
            echo -fuse-ld=lld -Wl,-O0,--threads=1)
# Kernels have no data outside functions, but gcc would guard what UBSan says of each place in their
# source: 6 MB in each program.
ifneq ($(filter address%,$(SANITIZE)),)
NO_GUARDS := $(shell echo 'int main() {}' | $(CXX) -Werror --param asan-globals=0 -x c++ -c \
                 -o /dev/null - 2>/dev/null && echo --param asan-globals=0)
$(BUILD)/obj/kernels/%.cc.o $(BUILD)/obj/tests/helpers/device_kernels.cc.o: private \
    OWN_CXXFLAGS += $(NO_GUARDS)
endif
endif

# LIBFUZZER=1, with clang: the library reports the branches that an input took.
# -fno-sanitize=function: that check needs a C++ runtime, which the library does not link.
ifdef LIBFUZZER
SANFLAGS += -fsanitize=fuzzer-no-link -fno-sanitize=function
# Fuzzing exercises host code: kernels need neither optimisation nor UBSan.
$(BUILD)/obj/kernels/%.cc.o: private CXXFLAGS := -O0 -g1 -fno-sanitize=undefined
endif

WARN := -Wall -Wextra -Wpedantic -Wshadow $(if $(WERROR),-Werror)
OWN_CPPFLAGS := -D_GNU_SOURCE -I. -MMD -MP
OWN_FLAGS    := $(WARN) -fPIC -fvisibility=hidden -pthread $(SANFLAGS)
# -ffp-contract=off: a product that is rounded before it is added stays so (kernels/reduce.cuh).
OWN_CXXFLAGS := -std=c++17 -fno-exceptions -fno-rtti -fno-threadsafe-statics -ffp-contract=off

COMPILE_C  = $(CC) -std=c11 $(OWN_FLAGS) $(CFLAGS) $(OWN_CPPFLAGS) $(CPPFLAGS)
COMPILE_CC = $(CXX) $(OWN_CXXFLAGS) $(OWN_FLAGS) $(CXXFLAGS) $(OWN_CPPFLAGS) $(CPPFLAGS)
COMPILE_CU = $(NVCC) -std=c++17 $(NVCCFLAGS) $(GENCODE) -I.
LINK       = $(CC) -pthread $(SANFLAGS) $(LINKER) $(CFLAGS) $(LDFLAGS)
LIBS       = -ldl -lm

# ---- sources ----------------------------------------------------------------------------------

# The sources that take longest to compile come first.
LIB_SOURCES  := $(sort $(wildcard kernels/*.cc)) $(sort $(wildcard *.c src/*/*.c emu/*.c emu/*.cc))
KERNELS      := $(sort $(wildcard kernels/*.cu))
TEST_SOURCES := $(sort $(wildcard tests/*/test_*.c tests/*/test_*.cc))
GPU_SOURCES  := $(sort $(wildcard tests/gpu/*.c tests/gpu/*.cc))
TEST_HELPERS := $(filter-out %/steps.c,$(sort $(wildcard tests/helpers/*.c tests/helpers/*.cc)))
PUBLIC_HEADERS := $(sort $(wildcard symwin.h symwin/*.h symwin/*.cuh))
BENCH_SOURCES := $(sort $(wildcard bench/*.c))
PERF_SOURCES := $(sort $(wildcard bench/perf/*.cc bench/perf/*.c bench/own/*.c))
PERF_KERNELS := $(sort $(wildcard bench/perf/*.cu))
CARRIED := $(sort $(wildcard symwin.h symwin/*.h symwin/*.cuh kernels/*.h kernels/*.cuh)) \
    src/driver/cuda_abi.h emu/emu_access.h \
    emu/emu_device.h bench/plot.py
INFO_SOURCES := $(sort $(wildcard tools/info/*.c)) nccl/variables.c
FUZZ_SOURCES := $(filter-out fuzz/main.c,$(sort $(wildcard fuzz/*.c)))
EXAMPLE      := $(sort $(wildcard examples/01_allreduce/*.c))
# The second example shares the first one's files except main.c.
BUFFERS      := examples/02_user_buffers/main.c $(filter-out %/main.c,$(EXAMPLE))
WITH_NCCL_SOURCES := $(sort $(wildcard examples/03_with_nccl/*.c))
# Its own kernels, and the first example's launcher.
CHANNEL      := $(sort $(wildcard examples/04_memory_channel/*.c examples/04_memory_channel/*.cc)) \
    examples/01_allreduce/launch.c
CHANNEL_FATBIN := $(if $(NVCC),$(BUILD)/obj/examples/04_memory_channel/kernels.fatbin)
NCCL_SOURCES := $(sort $(wildcard nccl/*.c))
NCCL_FULL_SOURCES := $(sort $(wildcard nccl/full/*.c)) nccl/next.c nccl/real_dlsym.c
NCCL_TEST_SOURCES := $(sort $(wildcard tests/nccl/*.c))
STAND_IN_SOURCES := $(sort $(wildcard tests/nccl/stand_in/*.c))
USER_SOURCES := $(sort $(wildcard tests/user/*.cu))
FAST_SOURCES := examples/06_fast_allreduce/fast_allreduce.cu
TOKEN_SOURCES := examples/07_all_to_all/all_to_all.cu

objects = $(patsubst %,$(BUILD)/obj/%.o,$(1))
LIB_OBJECTS := $(BUILD)/obj/fatbins.o $(BUILD)/obj/tables.o $(call objects,$(LIB_SOURCES))
TABLES      := $(sort $(wildcard tuning/*.csv))
FATBINS     := $(if $(NVCC),$(patsubst %.cu,$(BUILD)/obj/%.fatbin,$(KERNELS)))
TESTS       := $(addprefix $(BUILD)/tests/,$(basename $(notdir $(TEST_SOURCES))))
# Only compiled, never linked.
TEST_FATBINS := $(if $(NVCC),\
    $(patsubst %.cu,$(BUILD)/obj/%.fatbin,$(sort $(wildcard tests/helpers/*.cu))))
PERF_FATBINS := $(if $(NVCC),$(patsubst %.cu,$(BUILD)/obj/%.fatbin,$(PERF_KERNELS)))
PERF        := $(BUILD)/bench/symwin-perf
INFO        := $(BUILD)/symwin-info
REHEARSAL   := $(BUILD)/nvls-rehearsal
BENCHES     := $(patsubst bench/%.c,$(BUILD)/bench/%,$(BENCH_SOURCES))
FUZZERS     := $(patsubst fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SOURCES))
STEP_TESTS  := $(patsubst %,$(BUILD)/tests/%,test_absent test_cut_off test_flood test_fork_steps \
    test_kill test_register_memory test_shortage test_system_faults)
# Their communicators have ranks in several domains, with a stand-in for NCCL between these.
WITH_ENGINE := test_rails test_rails_busy test_rails_ends test_rails_faults test_rails_refused \
    test_rails_thread test_cut_off test_kill
GPU_TESTS   := $(addprefix $(BUILD)/tests/,$(basename $(notdir $(GPU_SOURCES))))
# Programs that run on GPUs too.
BOTH_TESTS  := $(addprefix $(BUILD)/tests/,$(shell cat tests/gpu/both.txt))
# A user's program of two files with the device headers: compiled by the host compiler for the
# emulated driver, and by nvcc for the CUDA runtime.
USER_EMU    := $(BUILD)/tests/user/ring-emu
USER_CUDART := $(if $(NVCC),$(BUILD)/tests/user/ring)
# These examples, of one .cu file each, are built in the same two ways.
FAST_EMU    := $(BUILD)/fast_allreduce-emu
FAST_CUDART := $(if $(NVCC),$(BUILD)/fast_allreduce)
TOKEN_EMU    := $(BUILD)/all_to_all-emu
TOKEN_CUDART := $(if $(NVCC),$(BUILD)/all_to_all)

# Only the header states the version.
version_part = $(shell sed -n 's/^.define SYMWIN_VERSION_$(1) //p' symwin.h)
MAJOR   := $(call version_part,MAJOR)
VERSION := $(MAJOR).$(call version_part,MINOR).$(call version_part,PATCH)

STATIC := $(BUILD)/libsymwin.a
SHARED := $(BUILD)/libsymwin.so.$(VERSION)
SONAME := libsymwin.so.$(MAJOR)
# Between programs and NCCL: nccl/README.md.
NCCL      := $(BUILD)/libsymwin-nccl.so
NCCL_FULL := $(BUILD)/libsymwin-nccl-full.so
NCCL_TESTS := $(addprefix $(BUILD)/tests/nccl/,program program-both program-alone window lookup \
    lookup-alone lookup-bare faults faults-both copies libtool.so libdlsym.so libown.so \
    cuda/libcuda.so.1 shared/libcuda.so.1 emulated/$(SONAME) collectives/libnccl.so.2 \
    older/libnccl.so.2 libnccl.so.2.28 stand_in/libnccl.so.2 stand_in_user storm libspy.so \
    scenes scenes-both way way-both libownway.so)

# ---- targets ----------------------------------------------------------------------------------

.PHONY: all run test tests race test-sanitize soak mutants mutants-check test-gpu gpu-tests bench \
    benches fuzz fuzz-build fuzz-check fuzz-minimise fuzzers install uninstall format \
    check-format wheel python-extension test-python clean help FORCE

all: $(STATIC) $(SHARED) $(NCCL) $(NCCL_FULL) $(BUILD)/allreduce_sm $(BUILD)/allreduce_ub \
    $(BUILD)/with_nccl \
    $(BUILD)/memory_channel $(INFO) $(REHEARSAL) \
    $(FAST_EMU) $(FAST_CUDART) $(TOKEN_EMU) $(TOKEN_CUDART)

run: $(BUILD)/allreduce_sm
	NTHREADS=$(or $(NTHREADS),4) $<

# Sanitizer builds leave out the fuzzers: fuzz-check builds them with sanitizers.
tests: all $(TESTS) $(NCCL_TESTS) $(PERF) $(USER_EMU) $(if $(SANITIZE),,$(FUZZERS)) race

# symwin-perf under ThreadSanitizer, which --race runs on the emulated driver. test-sanitize builds
# the same files.
ifdef SANITIZE
race:
else
race:
	@if echo 'int main(void) { return 0; }' | $(CC) -fsanitize=thread -x c \
	        -o /dev/null - 2>/dev/null; then \
	    $(MAKE) NVCC= BUILD=$(BUILD)/tsan SANITIZE=thread $(BUILD)/tsan/bench/symwin-perf; \
	else echo '  (no ThreadSanitizer: symwin-perf --race goes without)'; fi
endif

# Before anything is built.
ALL_TESTS := $(basename $(notdir $(wildcard tests/*/test_* tests/gpu/gpu_*)))
UNKNOWN_TESTS := $(filter-out $(ALL_TESTS),$(TESTS_ONLY))
ifneq ($(strip $(UNKNOWN_TESTS)),)
$(error no such test: $(UNKNOWN_TESTS): TESTS_ONLY takes names such as test_comm, of tests/*/test_*)
endif

test: tests
	@CC='$(CC)' CXX='$(CXX)' tools/run-tests.sh $(BUILD) test $(TESTS_ONLY)

# One sanitizer after the other: each run needs the machine's memory for itself.
test-sanitize:
	@$(MAKE) NVCC= BUILD=$(BUILD)/asan SANITIZE=address,undefined test
	@$(MAKE) NVCC= BUILD=$(BUILD)/tsan SANITIZE=thread test

# The tests' samples in full: ranks killed at every step, and every call made to fail.
soak: $(STEP_TESTS) $(BUILD)/tests/test_multicast_faults
	@tools/soak.sh $(BUILD)

# Checks that tests notice broken code: tests/mutants/README.md. JOBS tests at a time.
mutants:
	@MAKE='$(MAKE)' tests/mutants/run --build $(BUILD) --jobs $(or $(JOBS),2) $(ONLY)

mutants-check:
	@tests/mutants/run --check

gpu-tests: all $(GPU_TESTS) $(BOTH_TESTS) $(TEST_FATBINS) $(USER_CUDART) $(PERF)

test-gpu: gpu-tests
	@CC='$(CC)' CXX='$(CXX)' tools/run-tests.sh $(BUILD) gpu $(TESTS_ONLY)

benches: $(BENCHES) $(PERF) race

bench: benches
	bench/run.sh $(BUILD)

# SECONDS per fuzzer; new inputs go to $(BUILD)/corpus.
SECONDS ?= 600

fuzz:
	@MAKE='$(MAKE)' fuzz/run.sh $(BUILD) $(SECONDS) keep

# Leaves out kept inputs that reach nothing new.
fuzz-minimise:
	@MAKE='$(MAKE)' fuzz/run.sh $(BUILD) 0 minimise

fuzz-check:
	@MAKE='$(MAKE)' fuzz/run.sh $(BUILD) 4

# What fuzz-check would build.
fuzz-build:
	@MAKE='$(MAKE)' fuzz/run.sh $(BUILD) 0 build

fuzzers: $(FUZZERS)

clean:
	rm -rf $(BUILD)

help:
	@sed -n 's/^# *| \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

# | make                 both libraries, libsymwin-nccl.so, symwin-info and the examples, in build/
# | make run             the example with four ranks, on GPUs or on the emulated driver
# | make test            all tests; TESTS_ONLY="test_a test_b" runs some
# | make test-sanitize   the same under AddressSanitizer with UBSan, then under ThreadSanitizer, of
# |                      clang if it is there
# | make soak            kills a rank at over 2,000 steps, injects 20,000 faults; 15 minutes
# | make mutants         breaks the code in over 1,200 places, one at a time, and checks that tests
# |                      notice. An hour; ONLY="area or name"
# | make test-gpu        the tests that need a GPU; make gpu-tests only builds them
# | make race            symwin-perf under ThreadSanitizer, for its --race; also in make benches
# | make bench           measures, updates docs/performance.md; make benches only builds
# | make fuzz            clang's libFuzzer on the fuzzers of fuzz/, each for SECONDS=600
# | make fuzz-check      the same for 4 s each; with gcc, random changes of the kept inputs
# | make fuzz-minimise   leaves out inputs of fuzz/corpus that reach nothing new; needs clang
# | make wheel           dist/symwin-*.whl for Python; make test-python tests it in an environment
# |                      of its own, in which pip installs numpy and pytest; its extension is made
# |                      if PYTHON (python3) has headers
# | make install         PREFIX=/usr/local DESTDIR=
# | make format          clang-format in place; make check-format only checks
# | make clean
# |
# | CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS   as usual
# | DEBUG=-g1      less debug information, builds faster; default -g
# | WERROR=1       warnings are errors
# | NVCC=          no GPU code, even if nvcc is installed
# | ARCH=90        GPU code for this architecture only; GENCODE= for anything else
# | COMMIT=        the commit named in symwin-perf's files, if git cannot tell
# | BUILD=build    where everything goes
# | SANITIZE=      address,undefined or thread
# | V=1            show the commands

# ---- rules ------------------------------------------------------------------------------------

ifndef V
say = @printf '  %-5s %s\n' $(1) $(2);
endif

# Rebuild when a command changes: these stamps are only touched when their text differs.
define COMMANDS
$(COMPILE_C)
$(COMPILE_CC)
$(KERNEL_CXX)
$(LINK)
endef
define CU_COMMANDS
$(if $(NVCC),$(COMPILE_CU))
$(FATBINS)
$(PERF_FATBINS)
endef
COMMANDS_OF.cu = $(CU_COMMANDS)
COMMANDS_OF.headers = $(CUDA_INCLUDE)
COMMANDS_OF.tables = $(TABLES)
COMMANDS_OF.carried = $(CARRIED)
$(BUILD)/flags $(BUILD)/flags.cu $(BUILD)/flags.headers $(BUILD)/flags.tables \
    $(BUILD)/flags.carried: FORCE | $(BUILD)
	$(file >$@.new,$(if $(suffix $@),$(COMMANDS_OF$(suffix $@)),$(COMMANDS)))
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(BUILD):
	@mkdir -p $@

# Of tests, which are compiled more often than they run.
$(BUILD)/obj/tests/%.c.o $(BUILD)/obj/fuzz/%.c.o: private CFLAGS := $(subst -O2,-O1,$(CFLAGS))

$(BUILD)/obj/%.c.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(COMPILE_C) -c -o $@ $<

$(BUILD)/obj/%.cc.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(COMPILE_CC) -c -o $@ $<

$(BUILD)/obj/%.fatbin: %.cu $(BUILD)/flags.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(COMPILE_CU) -MMD -MP -MF $@.d -MT $@ --fatbin -o $@ $<

$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(COMPILE_CC) -x c++ -c -o $@ $<

$(BUILD)/obj/%.nvcc.o: %.cu $(BUILD)/flags.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(COMPILE_CU) -Xcompiler -Wall,-Wextra $(if $(WERROR),-Werror all-warnings) \
	    -MMD -MP -MF $@.d -MT $@ -c -o $@ $<

# Sources that are made here.
$(BUILD)/obj/%.o: $(BUILD)/obj/%.c $(BUILD)/flags
	$(call say,CC,$<)$(COMPILE_C) -c -o $@ $<

$(BUILD)/obj/fatbins.c: tools/embed.sh $(FATBINS) $(BUILD)/flags.cu
	@mkdir -p $(@D)
	@tools/embed.sh $(FATBINS) >$@

$(BUILD)/obj/tables.c: tools/embed.sh $(TABLES) $(BUILD)/flags.tables
	@mkdir -p $(@D)
	@KIND=table tools/embed.sh $(TABLES) >$@

$(BUILD)/obj/bench/perf/fatbins.c: tools/embed.sh $(PERF_FATBINS) $(BUILD)/flags.cu
	@mkdir -p $(@D)
	@TABLE=perf tools/embed.sh $(PERF_FATBINS) >$@

# The files with which symwin-perf compiles your own kernels, and plots: one text, embedded in it.
$(BUILD)/obj/bench/own/carried.txt: $(CARRIED) $(BUILD)/flags.carried
	@mkdir -p $(@D)
	@for file in $(CARRIED); do printf '\001%s\n' "$$file"; cat "$$file"; done >$@

$(BUILD)/obj/bench/own/carried.c: tools/embed.sh $(BUILD)/obj/bench/own/carried.txt
	@KIND=table TABLE=perf tools/embed.sh $(BUILD)/obj/bench/own/carried.txt >$@

# The commit that symwin-perf's files name; touched only when it changes.
$(BUILD)/perf_commit.h: FORCE | $(BUILD)
	@commit=$(COMMIT); [ -n "$$commit" ] || \
	    commit=$$(git describe --always --dirty --match=- 2>/dev/null) || \
	    commit=unknown; printf '#define PERF_COMMIT "%s"\n' "$$commit" >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(BUILD)/obj/bench/perf/machine.c.o: private OWN_CPPFLAGS += -I$(BUILD)
$(BUILD)/obj/bench/perf/machine.c.o: $(BUILD)/perf_commit.h

# symwin-perf --race delays the library's kernels, in builds under ThreadSanitizer.
ifeq ($(SANITIZE),thread)
$(BUILD)/obj/kernels/%.cc.o: private OWN_CPPFLAGS += -DSYMWIN_RACE
ifneq ($(KERNEL_CXX),)
$(BUILD)/obj/kernels/%.cc.o $(BUILD)/obj/tests/helpers/%.cc.o: private CXX := g++
endif
endif

# Many small kernels, of which each test runs some once: a quarter of the time to compile.
$(BUILD)/obj/tests/helpers/device_kernels.cc.o: private CXXFLAGS := -O0 -g1

# The compiler for your own kernels, that for symwin-perf under ThreadSanitizer, and the sanitizer
# that they must be built with.
$(BUILD)/obj/bench/own/compile.c.o: private OWN_CPPFLAGS += -DPERF_CXX='"$(CXX)"' \
    -DPERF_THREAD_CXX='"$(THREAD_CXX)"' -DPERF_SANITIZE='"$(SANITIZE)"'

# Rebuilt from scratch: an archive would keep the members of deleted files.
$(STATIC): $(LIB_OBJECTS)
	@rm -f $@
	$(call say,AR,$@)$(AR) crs $@ $^

# No -z defs with a sanitizer: its symbols come with the program, not with the library. dlclose()
# must not unmap code in which a thread of the library may be, however long (base/closer.c).
$(SHARED): $(LIB_OBJECTS) symwin.map
	$(call say,LINK,$@)$(LINK) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=symwin.map \
	    -Wl,--as-needed -Wl,-z,nodelete \
	    $(if $(SANITIZE),,-Wl,-z,defs) -o $@ $(LIB_OBJECTS) $(LIBS)
	@ln -sf $(@F) $(BUILD)/$(SONAME)
	@ln -sf $(SONAME) $(BUILD)/libsymwin.so

# They find libsymwin.so and each other in their own folder ($ORIGIN).
LINK_SHIM = $(LINK) -shared -Wl,-soname,$(@F) -Wl,-z,nodelete $(if $(SANITIZE),,-Wl,-z,defs) \
    -Wl,--enable-new-dtags -Wl,-rpath,'$$ORIGIN'

$(NCCL): $(call objects,$(NCCL_SOURCES)) nccl/nccl.map $(SHARED)
	$(call say,LINK,$@)$(LINK_SHIM) -Wl,--version-script=nccl/nccl.map -Wl,--as-needed -o $@ \
	    $(call objects,$(NCCL_SOURCES)) -L$(BUILD) -lsymwin $(LIBS)

$(NCCL_FULL): $(call objects,$(NCCL_FULL_SOURCES)) nccl/full/full.map $(NCCL)
	$(call say,LINK,$@)$(LINK_SHIM) -Wl,--version-script=nccl/full/full.map -Wl,--no-as-needed \
	    -o $@ $(call objects,$(NCCL_FULL_SOURCES)) -L$(BUILD) -lsymwin-nccl $(LIBS)

$(BUILD)/allreduce_sm: $(call objects,$(EXAMPLE)) $(STATIC)

# A stand-in for NCCL gets the driver from them (examples/09_several_hosts).
$(BUILD)/allreduce_sm $(PERF): private LDFLAGS += -Wl,-u,symwin_driver_find \
    -Wl,--export-dynamic-symbol=symwin_driver_find

$(BUILD)/obj/examples/02_user_buffers/main.c.o: private OWN_CPPFLAGS += -Iexamples/01_allreduce

$(BUILD)/allreduce_ub: $(call objects,$(BUFFERS)) $(STATIC)

# Links nothing of symwin: libsymwin-nccl.so is preloaded.
$(BUILD)/with_nccl: $(call objects,$(WITH_NCCL_SOURCES))

$(foreach s,$(filter-out examples/01_allreduce/%,$(CHANNEL)),$(BUILD)/obj/$(s).o): private \
    OWN_CPPFLAGS += -Iexamples/01_allreduce
$(BUILD)/obj/examples/04_memory_channel/image.c.o: $(CHANNEL_FATBIN) $(BUILD)/flags.cu
$(BUILD)/obj/examples/04_memory_channel/image.c.o: private OWN_CPPFLAGS += \
    $(if $(NVCC),-DKERNELS_FATBIN='"$(CHANNEL_FATBIN)"')

$(BUILD)/memory_channel: $(call objects,$(CHANNEL)) $(STATIC)

$(FAST_EMU): $(call objects,$(FAST_SOURCES)) $(STATIC)

$(FAST_CUDART): $(FAST_SOURCES:%.cu=$(BUILD)/obj/%.nvcc.o) $(STATIC)

$(TOKEN_EMU): $(call objects,$(TOKEN_SOURCES)) $(STATIC)

$(TOKEN_CUDART): $(TOKEN_SOURCES:%.cu=$(BUILD)/obj/%.nvcc.o) $(STATIC)

$(BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/bench/%.c.o $(STATIC)

$(BUILD)/allreduce_sm $(BUILD)/allreduce_ub $(BUILD)/with_nccl $(BUILD)/memory_channel $(FAST_EMU) \
    $(TOKEN_EMU) $(INFO) $(REHEARSAL) $(BENCHES) $(USER_EMU):
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -o $@ $^ $(LIBS)

# The dynamic list exports the emulated driver to kernels that it loads as shared objects.
$(PERF): $(BUILD)/obj/bench/perf/fatbins.o $(BUILD)/obj/bench/own/carried.o \
    $(call objects,$(PERF_SOURCES)) $(STATIC) bench/own/module.list
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -Wl,--dynamic-list=bench/own/module.list -o $@ \
	    $(filter-out %.list,$^) $(LIBS)

$(INFO): $(call objects,$(INFO_SOURCES)) $(STATIC)

$(REHEARSAL): $(call objects,tools/nvls_rehearsal.c) $(STATIC)

$(FUZZERS): $(BUILD)/fuzz/%: $(BUILD)/obj/fuzz/%.c.o \
    $(if $(LIBFUZZER),,$(BUILD)/obj/fuzz/main.c.o) $(STATIC)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) $(if $(LIBFUZZER),-fsanitize=fuzzer) -o $@ $^ $(LIBS)

$(BUILD)/obj/tests/%.o: private OWN_CPPFLAGS += -Itests/helpers

# The tests' helpers are in an archive, so that each test links only what it calls.
$(BUILD)/tests/libhelpers.a: $(call objects,$(TEST_HELPERS))
	@mkdir -p $(@D)
	@rm -f $@
	$(call say,AR,$@)$(AR) crs $@ $^

# The library with its system and malloc calls renamed, so that tests/helpers/steps.c can end the
# process or make a call fail at any of them.
STEP_CALLS := socket connect bind listen accept4 socketpair sendmsg recvmsg poll eventfd \
    memfd_create open ftruncate fcntl fstat lstat mmap munmap close shutdown mkdtemp unlink rmdir \
    getrandom getsockopt write read syscall pthread_create pthread_mutex_lock \
    pthread_mutex_trylock pthread_mutex_unlock malloc calloc realloc aligned_alloc
STEP_SOURCES := $(wildcard *.c src/*/*.c)
STEP_OBJECTS := $(patsubst %.c,$(BUILD)/obj/steps/%.c.o,$(STEP_SOURCES))

$(BUILD)/obj/steps/%.c.o: $(BUILD)/obj/%.c.o Makefile
	@mkdir -p $(@D)
	@$(OBJCOPY) $(foreach call,$(STEP_CALLS),--redefine-sym $(call)=step_$(call)) $< $@

$(BUILD)/tests/libsteps.a: $(STEP_OBJECTS) $(BUILD)/obj/tests/helpers/steps.c.o \
    $(filter-out $(call objects,$(STEP_SOURCES)),$(LIB_OBJECTS))
	@mkdir -p $(@D)
	@rm -f $@
	$(call say,AR,$@)$(AR) crs $@ $^

$(STEP_TESTS): $(BUILD)/tests/libhelpers.a $(BUILD)/tests/libsteps.a
	$(call say,LINK,$@)$(LINK) -Wl,--wrap=emu_enter -o $@ $(filter %.o,$^) \
	    $(BUILD)/tests/libhelpers.a \
	    $(BUILD)/tests/libsteps.a $(LIBS)

# Its NCCL, a library of its own, gets the driver from it.
$(addprefix $(BUILD)/tests/,$(WITH_ENGINE)) $(BUILD)/bench/startup: private LDFLAGS += \
    -Wl,--export-dynamic-symbol=symwin_driver_find
$(filter-out $(STEP_TESTS),$(TESTS) $(GPU_TESTS)): $(BUILD)/tests/libhelpers.a $(STATIC)
	$(call say,LINK,$@)$(LINK) -o $@ $(filter %.o,$^) $(BUILD)/tests/libhelpers.a $(STATIC) $(LIBS)
$(foreach t,$(TEST_SOURCES) $(GPU_SOURCES),\
  $(eval $(BUILD)/tests/$(basename $(notdir $(t))): $(call objects,$(t))))

# This test submits a rank's ballot in its place.
$(BUILD)/tests/test_offset_votes: private LDFLAGS += -Wl,--wrap=sw_segment_room \
    -Wl,--wrap=sw_comm_agree

# This test takes resources of the host away.
$(BUILD)/tests/test_multicast_faults: private LDFLAGS += -Wl,--wrap=sw_thread_begin \
    -Wl,--wrap=sw_memory_access

# This test holds threads in the middle of an abort and of a check.
$(BUILD)/tests/test_comm_failure: private LDFLAGS += -Wl,--wrap=sw_group_abort_kernels \
    -Wl,--wrap=sw_report_status

$(USER_EMU): $(call objects,$(USER_SOURCES)) $(STATIC)

$(USER_CUDART): $(USER_SOURCES:%.cu=$(BUILD)/obj/%.nvcc.o) $(STATIC)

$(FAST_CUDART) $(TOKEN_CUDART) $(USER_CUDART):
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(NVCC) -o $@ $^ -lpthread -ldl -lm

# Programs that use NCCL's allocator, linked to NCCL alone, to libsymwin-nccl before it, and to
# libsymwin-nccl alone; and a fake NCCL and a fake libcuda for them.
NCCL_FAKE := $(BUILD)/tests/nccl/libnccl.so.2
LINK_NCCL = $(LINK) -Wl,--no-as-needed -Wl,--enable-new-dtags -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../..'

# The second one has another name.
$(NCCL_FAKE) $(NCCL_FAKE).28: $(BUILD)/obj/tests/nccl/fake_nccl.c.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -Wl,-soname,$(@F) -o $@ $<

$(BUILD)/tests/nccl/collectives/libnccl.so.2: $(BUILD)/obj/tests/nccl/fake_collectives.c.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -Wl,-soname,$(@F) -o $@ $<

# An NCCL whose ranks may be processes, and its own test.
STAND_IN := $(BUILD)/tests/nccl/stand_in/libnccl.so.2
STAND_IN_USER := $(patsubst %,$(BUILD)/obj/tests/nccl/stand_in_%.c.o,user data states served lives \
    wires)

$(addprefix $(BUILD)/tests/,$(WITH_ENGINE)): | $(STAND_IN) # at run time

$(STAND_IN): $(call objects,$(STAND_IN_SOURCES))
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -Wl,-soname,$(@F) $(if $(SANITIZE),,-Wl,-z,defs) -o $@ $^ \
	    $(LIBS)

$(BUILD)/tests/nccl/stand_in_user: $(STAND_IN_USER) $(STAND_IN)
	$(call say,LINK,$@)$(LINK) -Wl,--enable-new-dtags -Wl,-rpath,'$$ORIGIN/stand_in' -o $@ $^ $(LIBS)

# Random calls of NCCL.
STORM := $(call objects,$(wildcard tests/nccl/storm*.c))

$(BUILD)/tests/nccl/storm: $(STORM) $(STAND_IN)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -Wl,--enable-new-dtags -Wl,-rpath,'$$ORIGIN/stand_in' -o $@ $^ $(LIBS)

# Scenes of programs with libsymwin-nccl.so preloaded or linked before NCCL, and a small one that
# looks its functions up.
SCENES := $(call objects,$(wildcard tests/nccl/scenes*.c))
WAY := $(BUILD)/obj/tests/nccl/way.c.o
LINK_STAND_IN = $(LINK) -Wl,--no-as-needed -Wl,--enable-new-dtags \
    -Wl,-rpath,'$$ORIGIN/stand_in:$$ORIGIN/../..'

$(BUILD)/tests/nccl/scenes: $(SCENES) $(STAND_IN)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK_STAND_IN) -o $@ $^ $(LIBS)

$(BUILD)/tests/nccl/way: $(WAY)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -o $@ $^ $(LIBS)

$(BUILD)/tests/nccl/scenes-both $(BUILD)/tests/nccl/way-both: $(NCCL) $(STAND_IN)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK_STAND_IN) -o $@ $(filter %.o,$^) -L$(BUILD) -lsymwin-nccl \
	    $(STAND_IN) $(LIBS)

$(BUILD)/tests/nccl/scenes-both: $(SCENES)
$(BUILD)/tests/nccl/way-both: $(WAY)

$(BUILD)/tests/nccl/libownway.so: $(BUILD)/obj/tests/nccl/own_way.c.o \
    $(call objects,$(STAND_IN_SOURCES))
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -o $@ $^ $(LIBS)

# It loads the one beside it.
$(BUILD)/tests/test_register: | $(BUILD)/tests/nccl/collectives/libnccl.so.2

$(BUILD)/tests/nccl/older/libnccl.so.2: $(BUILD)/obj/tests/nccl/fake_collectives.c.o \
    tests/nccl/older.map
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -Wl,-soname,$(@F) -Wl,--version-script=tests/nccl/older.map \
	    -o $@ $<

$(BUILD)/tests/nccl/libtool.so $(BUILD)/tests/nccl/libdlsym.so: $(BUILD)/tests/nccl/lib%.so: \
    $(BUILD)/obj/tests/nccl/fake_%.c.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -o $@ $<

# Between libsymwin-nccl.so and libsymwin.so.
$(BUILD)/tests/nccl/libspy.so: $(BUILD)/obj/tests/nccl/spy.c.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -o $@ $< $(LIBS)

$(BUILD)/tests/nccl/libown.so: $(patsubst %,$(BUILD)/obj/tests/nccl/%.c.o,own_copy fake_nccl)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -o $@ $^

NCCL_ENGINE := $(BUILD)/obj/tests/nccl/engine.c.o

$(BUILD)/tests/nccl/cuda/libcuda.so.1: $(BUILD)/obj/tests/nccl/fake_cuda.c.o $(NCCL_ENGINE) \
    $(STATIC)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -Wl,-soname,$(@F) -Wl,--exclude-libs,ALL -Wl,-Bsymbolic \
	    -o $@ $^ $(LIBS)

# The emulated driver of the libsymwin.so that the process has.
$(BUILD)/tests/nccl/shared/libcuda.so.1: $(BUILD)/obj/tests/nccl/symwin_cuda.c.o $(SHARED)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -Wl,-soname,$(@F) -Wl,--enable-new-dtags \
	    -Wl,-rpath,'$$ORIGIN/../../..' -o $@ $< -L$(BUILD) -lsymwin $(LIBS)

# A libsymwin.so whose emulated driver can be made to fail.
$(BUILD)/tests/nccl/emulated/$(SONAME): $(LIB_OBJECTS) $(NCCL_ENGINE) symwin.map \
    tests/nccl/engine.map
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -shared -Wl,-soname,$(@F) -Wl,--version-script=symwin.map \
	    -Wl,--version-script=tests/nccl/engine.map -o $@ $(LIB_OBJECTS) $(NCCL_ENGINE) $(LIBS)

$(BUILD)/tests/nccl/program: $(BUILD)/obj/tests/nccl/program.c.o $(NCCL_FAKE)
	$(call say,LINK,$@)$(LINK_NCCL) -o $@ $^ $(LIBS)

$(BUILD)/tests/nccl/lookup: $(BUILD)/obj/tests/nccl/lookup.c.o $(NCCL_FAKE)
	$(call say,LINK,$@)$(LINK_NCCL) -o $@ $^ $(LIBS)

$(BUILD)/tests/nccl/copies: $(BUILD)/obj/tests/nccl/copies.c.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -o $@ $^ $(LIBS)

$(BUILD)/tests/nccl/lookup-bare: $(BUILD)/obj/tests/nccl/lookup.c.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK) -o $@ $^ $(LIBS)

# Linked in place of NCCL.
$(BUILD)/tests/nccl/lookup-alone: $(BUILD)/obj/tests/nccl/lookup.c.o $(NCCL_FULL)
	$(call say,LINK,$@)$(LINK_NCCL) -o $@ $< -L$(BUILD) -lsymwin-nccl-full $(LIBS)

$(BUILD)/tests/nccl/program-both: $(BUILD)/obj/tests/nccl/program.c.o $(NCCL) $(NCCL_FAKE)
	$(call say,LINK,$@)$(LINK_NCCL) -o $@ $< -L$(BUILD) -lsymwin-nccl $(NCCL_FAKE) $(LIBS)

NCCL_FAULTS := $(patsubst %,$(BUILD)/obj/tests/nccl/%.c.o,faults fault_cases)

$(BUILD)/tests/nccl/faults: $(NCCL_FAULTS) $(NCCL_FAKE)
	$(call say,LINK,$@)$(LINK_NCCL) -o $@ $^ $(LIBS)

$(BUILD)/tests/nccl/faults-both: $(NCCL_FAULTS) $(NCCL) $(NCCL_FAKE)
	$(call say,LINK,$@)$(LINK_NCCL) -o $@ $(NCCL_FAULTS) -L$(BUILD) -lsymwin-nccl $(NCCL_FAKE) $(LIBS)

$(BUILD)/tests/nccl/program-alone: $(BUILD)/obj/tests/nccl/program.c.o $(NCCL)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK_NCCL) -o $@ $< -L$(BUILD) -lsymwin-nccl $(LIBS)

$(BUILD)/tests/nccl/window: $(BUILD)/obj/tests/nccl/window.c.o $(NCCL)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(LINK_NCCL) -o $@ $< -L$(BUILD) -lsymwin-nccl -lsymwin $(LIBS)

$(BUILD)/obj/tests/helpers/abi_cuda.c.o: $(BUILD)/flags.headers
$(BUILD)/obj/tests/helpers/abi_cuda.c.o: private OWN_CPPFLAGS += \
    $(if $(CUDA_INCLUDE),-DHAVE_CUDA_H -isystem $(CUDA_INCLUDE))

-include $(patsubst %.o,%.d,$(LIB_OBJECTS)) $(addsuffix .d,$(FATBINS) $(PERF_FATBINS) \
    $(TEST_FATBINS) $(CHANNEL_FATBIN)) \
    $(USER_SOURCES:%.cu=$(BUILD)/obj/%.nvcc.o.d) $(USER_SOURCES:%=$(BUILD)/obj/%.d) \
    $(FAST_SOURCES:%.cu=$(BUILD)/obj/%.nvcc.o.d) $(FAST_SOURCES:%=$(BUILD)/obj/%.d) \
    $(TOKEN_SOURCES:%.cu=$(BUILD)/obj/%.nvcc.o.d) $(TOKEN_SOURCES:%=$(BUILD)/obj/%.d)
-include $(patsubst %.o,%.d,$(call objects,$(EXAMPLE) $(BUFFERS) $(WITH_NCCL_SOURCES) $(CHANNEL) \
    $(BENCH_SOURCES) $(PERF_SOURCES) $(INFO_SOURCES) tools/nvls_rehearsal.c $(TEST_SOURCES) \
    $(GPU_SOURCES) $(TEST_HELPERS) $(FUZZ_SOURCES) fuzz/main.c $(NCCL_SOURCES) \
    $(NCCL_FULL_SOURCES) $(NCCL_TEST_SOURCES) $(STAND_IN_SOURCES)))

# ---- install ----------------------------------------------------------------------------------

# Refuses, before anything is built, folders that pkg-config or the shell would take for others.
ifneq ($(filter install uninstall,$(MAKECMDGOALS)),)
$(foreach v,PREFIX LIBDIR INCLUDEDIR BINDIR,\
    $(if $(and $(filter 1,$(words $($v))),$(filter /%,$($v))),,\
    $(error $v is "$($v)": give the path of a folder that begins with a slash and has no spaces)))
$(if $(filter-out 0 1,$(words $(DESTDIR))),$(error DESTDIR is "$(DESTDIR)": give it no spaces))
endif

install: $(STATIC) $(SHARED) $(NCCL) $(NCCL_FULL) $(INFO) $(PERF)
	install -d $(DESTDIR)$(INCLUDEDIR)/symwin $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(BINDIR)
	install -m 644 symwin.h $(DESTDIR)$(INCLUDEDIR)
	install -m 644 $(filter symwin/%,$(PUBLIC_HEADERS)) $(DESTDIR)$(INCLUDEDIR)/symwin
	install -m 644 $(STATIC) $(DESTDIR)$(LIBDIR)
	install -m 755 $(SHARED) $(NCCL) $(NCCL_FULL) $(DESTDIR)$(LIBDIR)
	install -m 755 $(INFO) $(PERF) $(DESTDIR)$(BINDIR)
	! [ -x $(BUILD)/tsan/bench/symwin-perf ] || install -m 755 $(BUILD)/tsan/bench/symwin-perf \
	    $(DESTDIR)$(BINDIR)/symwin-perf-tsan
	ln -sf $(notdir $(SHARED)) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libsymwin.so
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	    -e 's|@VERSION@|$(VERSION)|' symwin.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/symwin.pc

uninstall:
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/,$(PUBLIC_HEADERS)) \
	    $(addprefix $(DESTDIR)$(LIBDIR)/,libsymwin.a libsymwin.so $(SONAME) $(notdir $(SHARED)) \
	    $(notdir $(NCCL) $(NCCL_FULL)) pkgconfig/symwin.pc) \
	    $(addprefix $(DESTDIR)$(BINDIR)/,$(notdir $(INFO)) $(notdir $(PERF)) symwin-perf-tsan)
	! [ -d $(DESTDIR)$(INCLUDEDIR)/symwin ] || rmdir --ignore-fail-on-non-empty \
	    $(DESTDIR)$(INCLUDEDIR)/symwin

# ---- Python ------------------------------------------------------------------------------------

PYTHON ?= python3
WHEEL  := $(BUILD)/wheel
VENV   := $(BUILD)/venv

# The extension: with the headers of $(PYTHON), and by the stable ABI for every CPython from 3.9 on.
# Where there are no headers the wheel has none, and calls go by ctypes.
FAST := $(BUILD)/_fast.abi3.so

python-extension:
	@mkdir -p $(BUILD) && rm -f $(FAST)
	@folder=$$($(PYTHON) -c 'import sys, sysconfig; \
	    fits = sys.implementation.name == "cpython" and sys.version_info >= (3, 9); \
	    print(sysconfig.get_path("include") if fits else "")'); \
	if [ -n "$$folder" ] && [ -e "$$folder/Python.h" ]; then \
	    set -x; \
	    $(COMPILE_C) -MF $(BUILD)/_fast.d -isystem "$$folder" -shared $(LDFLAGS) -o $(FAST) \
	        python/_fast.c python/_fast_arguments.c; \
	else \
	    echo "$(PYTHON) has no Python.h: the wheel has no extension, and calls by ctypes"; \
	fi

wheel: $(SHARED) $(NCCL) $(NCCL_FULL) $(INFO) $(PERF) python-extension
	rm -rf $(WHEEL) && cp -r python $(WHEEL)
	cd $(WHEEL)/symwin && rm -rf __pycache__ && mkdir -p lib bin include/symwin
	install -m 755 $(SHARED) $(WHEEL)/symwin/lib/$(SONAME)
	install -m 755 $(NCCL) $(NCCL_FULL) $(WHEEL)/symwin/lib
	install -m 755 $(INFO) $(PERF) $(WHEEL)/symwin/bin
	install -m 644 symwin.h $(WHEEL)/symwin/include
	install -m 644 $(filter symwin/%,$(PUBLIC_HEADERS)) $(WHEEL)/symwin/include/symwin
	$(PYTHON) python/bindings.py . $(WHEEL)/symwin/_api.py
	install -m 644 bench/plot.py $(WHEEL)/symwin/_plot.py
	[ ! -e $(FAST) ] || install -m 755 $(FAST) $(WHEEL)/symwin
	mkdir -p dist && rm -f dist/symwin-*.whl
	$(PYTHON) -m pip wheel -q --no-deps --wheel-dir dist $(WHEEL)
	@ls dist/symwin-*.whl

# In a fresh environment with numpy and pytest, which pip fetches.
test-python: wheel
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q pytest dist/symwin-*.whl
	cd $(VENV) && SYMWIN_DRIVER=$${SYMWIN_DRIVER:-emu} bin/python -m symwin selftest
	export SYMWIN_DRIVER=$${SYMWIN_DRIVER:-emu}; cd $(VENV) && \
	for extension in $$([ ! -e $(abspath $(FAST)) ] || echo 1) 0; do \
	    echo "SYMWIN_PYTHON_EXTENSION=$$extension"; \
	    SYMWIN_PYTHON_EXTENSION=$$extension bin/python -m pytest -q -p no:cacheprovider \
	        $(abspath tests/python) || exit 1; \
	done

# ---- style ------------------------------------------------------------------------------------

CLANG_FORMAT ?= clang-format
FORMATTED := $(sort $(wildcard $(foreach d,. python symwin src src/* bench bench/* emu \
    fuzz kernels nccl nccl/full tests/* tools tools/info \
    examples/*,$(addprefix $(d)/*.,c h cc cu cuh))))

format:
	@command -v $(CLANG_FORMAT) >/dev/null || { echo "$(CLANG_FORMAT) is not installed"; exit 1; }
	$(CLANG_FORMAT) -i $(FORMATTED)

check-format:
	@command -v $(CLANG_FORMAT) >/dev/null || { echo "$(CLANG_FORMAT) is not installed"; exit 1; }
	$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)
