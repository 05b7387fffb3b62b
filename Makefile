# mptrain: GNU make 3.81 and a C compiler are enough. The targets:
#   make               the library's objects, the examples;  UNITS=1 makes it one object
#   make mnist         trains the MNIST classifier;  ARGS="--precision bf16 --epochs 2"  OFFLINE=1
#   make examples      the other examples, in build/
#   make cuda          the examples for NVIDIA GPUs, in build/cuda/;  CUDA_ARCH=native, all, sm_90
#   make test-parallel training by several processes, with each MPI that is here;  FULL=1
#                      MPIS="openmpi mpich"  ONLY=overflow
#   make test-hosts    the same by ranks in network namespaces, as root;  RANKS=2  RATE=1gbit  BENCH=1
#   make web           build/web/digits.html: a net that trains in a browser, as one file to hand out
#   make doctor        what this machine computes with, how fast, and in which precision to train
#   make test          everything the suite has;  RELEASE=1 tests mptrain.h instead of src/
#   make tests         builds the suite without running it
#   make amalgamate    writes mptrain.h, mptrain_cuda.cu, tools/mptrain_tools.h,
#                      tools/mptrain_{watch,compile,parallel}.h from src/
#   make check-header  fails unless these are what src/ generates
#   make lint          the rules of the house: wings, rooms, forbidden calls
#   make house         its wings and rooms, with lines, bytes and arrows
#   make header-test   what a user's compiler sees of mptrain.h (warnings, symbols, sizes)
#   make benches       builds the benchmarks in tools/bench/
#   make bench         the benchmarks in tools/bench/: ours against ceilings
#   make bench-peers   and against PyTorch;  ROWS="tiny mnist"  WRITE=1  PYTHON=  PROTOTYPE=folder
#                      OTHERS=folder with libraries in C, see tools/bench/small_peer.py
#   make bench-memory  peaks of PyTorch and ours in one run;  PYTHON=  ARGS="--models vit-b16"
#   make bench-parallel two ranks beside PyTorch's DDP over gloo;  PYTHON=  ARGS="--compiled"
#   make bench-quality what the options that save memory cost in quality, in three nets and five
#                      seeds: a quarter of an hour;  DATA=  TASK=mnist  SEEDS=2  WRITE=1
#   make bench-pairs   mptrain.h against that of revision OLD, or of that file;  ROWS="mlp norms"
#   make tables        what precision costs and saves whole models, in build/tables/tables.md: about
#                      an hour;  DATA=  ROWS="resnet gpt bert vit"  SEEDS="0 1 2"  TINY=1  WRITE=1
#                      PEERS="fp32 bf16"
#   make compare       random cases against PyTorch, which PYTHON= has;  ARGS="--seconds 60 --seed 2
#                      --only conv2d,steps"
#   make test-export   nets and ops as ONNX files, run in onnxruntime, which PYTHON= has
#   make gpu-check     all that needs an NVIDIA GPU;  PART="build mnist models"  DATA=  SIM=1
#   make check-instructions  instruction counts against committed figures;  UPDATE=1 writes them
#   make messages      every error and log line of the library, by room;  WORD="scaler"
#   make coverage      the branches of src/ that the suite takes, by room;  ROOM=data/idx.c lists the rest
#   make mutate        breaks the library in N small places, one by one: does a test notice?  N=20
#                      SEED=1  ONLY="src/ground/parallel.c"
#   make torture       kills, power losses, exact resumes, refused memory, failing files and threads,
#                      cut and changed files: 20 minutes at most;  QUICK=1 takes 3;  SEED=1
#                      ONLY="kills power"
#   make torture-long  the same with larger numbers, fuzzers, and under valgrind and the thread
#                      sanitizer, for hours; a run that was broken off goes on;  SHARE=100  WRITE=1
#   make install       headers and pkg-config file;  PREFIX=/usr/local  DESTDIR=
#   make clean
# WATCH= builds without tools/mptrain_watch.h and tools/mptrain_compile.h.
# CC, CFLAGS, CPPFLAGS, LDFLAGS, LDLIBS are yours; EXTRA is linked into every program. BUILD=dir keeps builds apart; RUN="qemu-x -L y"
# and EXE=.exe run what a cross compiler made; STD and WARN replace the language and warning flags;
# V=1 shows the commands. MPTRAIN_TEST_SECONDS=N ends a test program that hangs, and names the test.

ifeq ($(origin CC),default)
CC := $(shell command -v cc >/dev/null 2>&1 && echo cc || echo gcc)
endif
HOSTCC ?= $(shell command -v cc >/dev/null 2>&1 && echo cc || echo gcc)
LINK ?= $(CC)
STD ?= -std=c11
WARN ?= -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wcast-qual
ifeq ($(origin CFLAGS),undefined)
CFLAGS := -O2
TEST_CFLAGS ?= -O1
endif
TEST_CFLAGS ?= $(CFLAGS)
LDLIBS ?= -lm -lpthread
WATCH ?= -DMPTRAIN_WATCH -DMPTRAIN_COMPILE
EXTRA ?=
EXE ?=
RUN ?=
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib

ifeq ($(RELEASE),1)
BUILD ?= build/release
HEADER := mptrain.h
INCLUDES := -I. -Itools
else
BUILD ?= build
HEADER := src/mptrain.h
INCLUDES := -Isrc -I.
endif

# As many jobs as there are cores, but no more than eight, unless the command line says how many. What
# only runs a script that calls make is left out.
ifneq ($(filter all test tests test-parallel examples mnist cuda lint benches,$(or $(MAKECMDGOALS),all)),)
MAKEFLAGS += -j$(or $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null) && \
    { [ "$$n" -lt 8 ] && echo "$$n" || echo 8; }),1)
endif

# The rooms, in the order of the spine, and the wings with what they may use, from src/README.md.
SPINES := src/mptrain.h src/mptrain_watch.h src/mptrain_compile.h src/mptrain_parallel.h
ROOMS := $(shell sed -n 's/^.include "\(.*\/.*\|context.c\)"$$/src\/\1/p' $(SPINES))
MPI_INCLUDES := $(shell mpicc -showme:compile 2>/dev/null || \
    mpicc -compile_info 2>/dev/null | tr ' ' '\n' | grep '^-I')
ALONE := $(if $(MPI_INCLUDES),$(ROOMS),$(filter-out src/parallel/%.c,$(ROOMS)))
WATCHING := $(shell sed -n 's/^.include "\(.*\/.*\)"$$/\1/p' src/mptrain_watch.h)
COMPILING := $(shell sed -n 's/^.include "\(.*\/.*\)"$$/\1/p' src/mptrain_compile.h)
WINGS := $(shell sed -n 's/^| `\([a-z]*\)\/` .*/\1/p' src/README.md)
wing_uses = $(1) $(shell sed -n 's/^| `$(1)\/` .*| \(.*\) |$$/\1/p' src/README.md)
EXAMPLES := $(sort $(wildcard examples/*.c))
TESTS := $(sort $(wildcard tests/test_*.c tests/api_*.c))
BENCHES := $(sort $(filter-out %/bench_parallel.c,$(wildcard tools/bench/*.c)))

# The CPU backend is an object of its own, so that two cores work on the library, and a change above
# the waist leaves it alone. Benchmarks measure what most users build: one.
ONE := $(BUILD)/mptrain.o
TWO := $(BUILD)/mptrain_rest.o $(BUILD)/mptrain_cpu.o
LIBRARY := $(if $(filter 1,$(UNITS)),$(ONE),$(TWO))

# These hold the implementation themselves; everything else links the library.
SELF := $(shell grep -lE '^.(define MPTRAIN_IMPLEMENTATION|include "bench.h")' \
    $(EXAMPLES) $(TESTS) $(BENCHES) tests/tool_*.c /dev/null 2>/dev/null)
library = $(if $(filter $(1),$(SELF)),,$(if $(filter $(1),$(BENCHES)),$(ONE),$(LIBRARY)))

LOGS := $(patsubst tests/%.c,$(BUILD)/tests/%.log,$(TESTS)) \
    $(if $(EXAMPLES),$(BUILD)/tests/examples.log)
TEST_PROGRAMS := $(patsubst tests/%.c,$(BUILD)/tests/%$(EXE),$(TESTS))
EXAMPLE_PROGRAMS := $(patsubst examples/%.c,$(BUILD)/%$(EXE),$(EXAMPLES))

COMPILE = $(CC) $(COMPILE_AS)
COMPILE_AS = $(STD) $(INCLUDES) -DMPTRAIN_HEADER='"$(HEADER)"' -DMPTRAIN_HEADER_FILE='"$(HEADER)"' $(WARN) $(WATCH) $(CPPFLAGS)
Q := $(if $(V),,@)
DEPS = -MMD -MP -MF $@.d

all: $(LIBRARY) examples

mnist: $(BUILD)/mnist$(EXE)
	@if [ ! -d data/mnist ] && [ "$(OFFLINE)" != 1 ] && [ -z "$(filter --data% --help,$(ARGS))" ]; \
	then sh tools/get_mnist.sh data/mnist || true; fi
	@$(RUN) $(BUILD)/mnist$(EXE) $(ARGS)

examples: $(EXAMPLE_PROGRAMS)

NVCC ?= nvcc
CUDA_ARCH ?= native
CUDA_FLAGS ?= -arch=$(CUDA_ARCH)
CUDA_ARCHS = 75 80 86 89 90 100 120
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell command -v $(NVCC) 2>/dev/null))
cuda:
	@command -v $(NVCC) >/dev/null 2>&1 || { echo "make cuda: there is no $(NVCC) on the path;" \
	    "install the CUDA toolkit, or name it: NVCC=/usr/local/cuda/bin/nvcc"; exit 2; }
	@arch='$(CUDA_ARCH)'; if [ "$$arch" = native ] && $(NVCC) -arch=native --dryrun -x cu -c \
	    /dev/null -o /dev/null 2>&1 | grep -q 'valid GPU'; then arch=all; \
	    echo "make cuda: there is no GPU here to ask, so this is for all of them, which takes a" \
	    "while. CUDA_ARCH=sm_90, say, is for yours."; fi; \
	flags="-arch=$$arch"; [ "$$arch" != all ] || { flags='--threads 0'; last=; \
	    known=$$($(NVCC) --list-gpu-code); \
	    for n in $(CUDA_ARCHS); do \
	        case " "$$known" " in *sm_$$n[!0-9]*) last=$$n; \
	            flags="$$flags -gencode arch=compute_$$n,code=sm_$$n";; esac; done; \
	    flags="$$flags -gencode arch=compute_$$last,code=compute_$$last"; }; \
	$(MAKE) CUDA_FLAGS="$$flags" BUILD='$(BUILD)/cuda' CPPFLAGS='$(CPPFLAGS) -DMPTRAIN_CUDA' \
	    EXTRA='$(BUILD)/cuda/mptrain_cuda.o' LDLIBS='-L$(CUDA_HOME)/lib64 \
	    -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lstdc++ -ldl -lrt $(LDLIBS)' all

tests: $(TEST_PROGRAMS)

test: $(LOGS)
	@sh tests/run.sh sum $(LOGS)

# What is generated: the spine, the file, and the spine that has rooms of its own beside it.
generate = $(BUILD)/amalgamate src/mptrain.h $(1)mptrain.h src/mptrain_watch.h src/mptrain_compile.h \
    src/mptrain_parallel.h && \
    $(BUILD)/amalgamate src/mptrain_compile.h $(2)mptrain_compile.h src/mptrain.h && \
    $(BUILD)/amalgamate src/mptrain_watch.h $(2)mptrain_watch.h src/mptrain.h && \
    $(BUILD)/amalgamate src/mptrain_parallel.h $(2)mptrain_parallel.h src/mptrain.h && \
    $(BUILD)/amalgamate src/cuda/mptrain_cuda.cu $(1)mptrain_cuda.cu && \
    $(BUILD)/amalgamate src/tools/mptrain_tools.h $(2)mptrain_tools.h
GENERATED := mptrain.h mptrain_cuda.cu tools/mptrain_tools.h tools/mptrain_watch.h \
    tools/mptrain_compile.h tools/mptrain_parallel.h

amalgamate: $(BUILD)/amalgamate
	$(call generate,,tools/)

check-header: $(BUILD)/amalgamate
	@mkdir -p $(BUILD)/generated
	@$(call generate,$(BUILD)/generated/,$(BUILD)/generated/)
	@for file in $(GENERATED); do cmp $(BUILD)/generated/$${file##*/} $$file || \
	    { echo "$$file is not what src/ generates: run 'make amalgamate'"; exit 1; }; done
	@echo "$(GENERATED) are what src/ generates"

SCRIPTS := $(wildcard tools/*.sh tools/*/*.sh tests/*/*.sh .ci/run)
house: $(BUILD)/house
	@$< src/mptrain.h

lint: $(BUILD)/lint $(BUILD)/house $(BUILD)/amalgamate $(BUILD)/reference $(ALONE:src/%=$(BUILD)/alone/%.log)
	@$(BUILD)/lint src/mptrain.h $(shell find src -name '*.[ch]' ! -path src/mptrain.h ! -path 'src/tools/*') $(EXAMPLES) $(wildcard examples/*.h examples/*/*.c tests/*.[ch] \
	    tests/*/*.[ch] $(filter-out $(GENERATED),$(wildcard tools/*.[ch])) tools/*.sh tools/bench/*.[ch])
	@$(BUILD)/lint src/tools/mptrain_tools.h $(filter-out src/tools/mptrain_tools.h,$(wildcard src/tools/*.[ch] src/tools/*/*.h))
	@for script in $(SCRIPTS); do \
	    read -r shell <$$script; \
	    $${shell#*!} -n $$script || exit 1; done
	@$(BUILD)/house --check src/mptrain.h
	@mkdir -p $(BUILD)/generated
	@$(call generate,$(BUILD)/generated/,$(BUILD)/generated/)
	@$(BUILD)/reference --check $(BUILD)/generated/mptrain.h tests/api_shown.c \
	    $(BUILD)/generated/mptrain_tools.h README.md
	@echo "lint: $(words $(ALONE)) rooms are clean and compile alone$(if \
	    $(MPI_INCLUDES),,; src/parallel not: there is no mpicc)"

# A room is compiled with nothing on the path but what its wing may use. What is declared but not
# defined there would be an arrow to a room above.
$(BUILD)/alone/%.log: src/% FORCE
	@mkdir -p $(@D)
	@$(CC) $(STD) -fsyntax-only -I$(BUILD)/wings/$(firstword $(subst /, ,$*)) \
	    -DMPTRAIN_IMPLEMENTATION $(if $(filter context.c,$*),-DMPTRAIN_CPU_SEPARATE) \
	    $(if $(filter $(WATCHING),$*),-DMPTRAIN_WATCH) $(if $(filter $(COMPILING),$*),-DMPTRAIN_COMPILE) \
	    $(if $(filter parallel/%,$*),-DMPTRAIN_USE_MPI $(MPI_INCLUDES)) -Werror=implicit-function-declaration -x c $< 2>$@ && \
	    ! grep -q -e 'never defined' -e 'undefined-internal' $@ || \
	    { echo "$< needs more than its wing may use"; grep -e error: -e defined $@; exit 1; }
$(ROOMS:src/%=$(BUILD)/alone/%.log): $(BUILD)/wings/made

$(BUILD)/wings/made: src/README.md
	@rm -rf $(@D)
	@mkdir -p $(addprefix $(@D)/,$(WINGS) context.c)
	@$(foreach w,$(WINGS),$(foreach u,$(call wing_uses,$(w)),ln -s '$(CURDIR)/src/$(u)' $(@D)/$(w)/$(u);))
	@$(foreach w,$(WINGS),ln -s '$(CURDIR)/src/$(w)' $(@D)/context.c/$(w);)
	@touch $@

reference: $(BUILD)/reference
	@$(BUILD)/reference mptrain.h tests/api_shown.c $(BUILD)/reference.md
	@echo "$(BUILD)/reference.md is the manual and every declaration, with examples"

header-test:
	@CC='$(CC)' BUILD='$(BUILD)' bash tests/header/run.sh

BENCH_PROGRAMS := $(patsubst tools/bench/%.c,$(BUILD)/bench/%$(EXE),\
    $(foreach b,$(BENCHES),$(if $(findstring _,$(notdir $b)),$b)))
benches: $(BENCH_PROGRAMS)

bench: $(filter-out %/bench_quality$(EXE),$(filter $(BUILD)/bench/bench_%,$(BENCH_PROGRAMS)))
	@for program in $^; do echo "== $$program"; $(RUN) $$program $(ARGS) || exit 1; done

PYTHON ?= python3
PEER_BENCHES := $(patsubst %,$(BUILD)/bench/bench_%$(EXE),shapes conv mlp models small recurrent)
bench-peers: $(PEER_BENCHES) $(BUILD)/mnist$(EXE)
	@$(PYTHON) tools/bench/peers.py --build '$(BUILD)' --rows '$(ROWS)' --cc '$(CC)' \
	    --data '$(firstword $(wildcard data/mnist $(MPTRAIN_DATA)/mnist))' \
	    --prototype '$(PROTOTYPE)' --others '$(OTHERS)' $(if $(WRITE),--write)

bench-memory: $(BUILD)/bench/bench_memory$(EXE)
	@$(PYTHON) tools/bench/memory_peer.py --bench $< $(ARGS)

bench-compile: $(BUILD)/bench/bench_compile$(EXE)
	@$< $(ARGS)

bench-quality: $(BUILD)/bench/bench_quality$(EXE)
	@$(MAKE) --no-print-directory $(BUILD)/tables_cifar || \
	    echo "make bench-quality: no stb_image.h, so without CIFAR-10"
	@TASK='$(TASK)' SEEDS='$(SEEDS)' WRITE='$(WRITE)' \
	    sh tools/bench/quality.sh '$(BUILD)' '$(or $(DATA),$(MPTRAIN_DATA))'

messages:
	@$(PYTHON) tools/messages.py $(WORD)

bench-pairs:
	@$(PYTHON) tools/bench/pairs.py --build '$(BUILD)/pairs' --old '$(OLD)' --rows '$(ROWS)' \
	    --make '$(MAKE)' $(ARGS)

$(BUILD)/mptrain.so: $(BUILD)/mptrain.c $(BUILD)/flags
	@echo "  CC    $@"
	$(Q)$(COMPILE) $(CFLAGS) $(DEPS) -shared -fPIC -o $@ $< $(LDFLAGS) $(LDLIBS)

compare: $(BUILD)/mptrain.so
	@$(PYTHON) tools/compare.py --library $< --header $(HEADER) --cc '$(CC)' $(ARGS)

# Without stb_image.h there is no CIFAR-10, which comes as PNG files.
TABLE_PROGRAMS := $(filter $(addprefix $(BUILD)/,resnet gpt bert vit),$(EXAMPLE_PROGRAMS))
tables: $(TABLE_PROGRAMS)
	@$(MAKE) $(BUILD)/tables_cifar || echo "make tables: no stb_image.h, so without CIFAR-10"
	@ROWS='$(ROWS)' PEERS='$(PEERS)' $(if $(SEEDS),SEEDS='$(SEEDS)') TINY='$(TINY)' WRITE='$(WRITE)' \
	    PYTHON='$(PYTHON)' sh tools/tables.sh '$(BUILD)' '$(or $(DATA),$(MPTRAIN_DATA),data)'

$(BUILD)/tables_cifar: tools/tables_cifar.c $(BUILD)/flags
	@echo "  CC    $@"
	$(Q)$(COMPILE) $(CFLAGS) $(LDFLAGS) $(DEPS) -o $@ $< $(LDLIBS)

gpu-check:
	@PART='$(PART)' SIM='$(SIM)' DATA='$(DATA)' NVCC='$(NVCC)' PYTHON='$(PYTHON)' sh tools/gpu_check.sh

check-instructions: $(BUILD)/bench/count_steps
	@sh tools/bench/check_instructions.sh $< tools/bench/instructions.txt '$(CC)' '$(CFLAGS)' \
	    $(if $(UPDATE),update)

coverage:
	@CC='$(if $(filter command environment,$(origin CC)),$(CC),gcc)' ROOM='$(ROOM)' KEEP='$(KEEP)' \
	    $(if $(filter command environment,$(origin TESTS)),TESTS='$(TESTS)') \
	    sh tools/coverage.sh '$(BUILD)/coverage'

mutate: $(BUILD)/mutate
	@CC='$(CC)' ONLY='$(ONLY)' FIRST='$(FIRST)' sh tools/mutate.sh '$(BUILD)/mutants' '$<' \
	    '$(or $(N),20)' '$(or $(SEED),1)'

# Programs for each MPI that is here; Debian has mpicc.openmpi and mpicc.mpich side by side.
MPIS ?= $(foreach m,openmpi mpich,$(if $(shell command -v mpicc.$m && command -v mpirun.$m),$m))
PARALLEL := train ranks spiral
test-parallel: $(if $(MPIS),$(foreach m,$(MPIS),$(PARALLEL:%=$(BUILD)/parallel/%_$m)) \
    $(BUILD)/parallel/without.o)
	@if [ -z '$(MPIS)' ]; then echo 'make test-parallel: skipped, there is neither' \
	    'mpicc.openmpi nor mpicc.mpich (libopenmpi-dev openmpi-bin libmpich-dev mpich)'; \
	    echo '0 passed, 0 failed, 1 skipped'; else \
	    FULL='$(FULL)' ONLY='$(ONLY)' SEED='$(or $(SEED),1)' \
	    sh tests/parallel/run.sh '$(BUILD)/parallel' $(MPIS); fi

$(BUILD)/parallel/library.c: $(BUILD)/flags
	@mkdir -p $(@D)
	@printf '#define MPTRAIN_USE_MPI\n#define MPTRAIN_CPU_SEPARATE\n#define MPTRAIN_IMPLEMENTATION\n#include MPTRAIN_HEADER_FILE\n' > $@

$(BUILD)/parallel/without.o: $(BUILD)/mptrain_rest.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $@"
	$(Q)$(COMPILE) $(TEST_CFLAGS) $(DEPS) -c -o $@ $<

define parallel_rules
$(BUILD)/parallel/library_$(1).o: $(BUILD)/parallel/library.c
	@echo "  CC    $$@"
	$$(Q)mpicc.$(1) $$(COMPILE_AS) $$(TEST_CFLAGS) $$(DEPS) -c -o $$@ $$<
$(BUILD)/parallel/train_$(1): tests/parallel/train.c
$(BUILD)/parallel/ranks_$(1): tests/parallel/ranks.c
$(BUILD)/parallel/spiral_$(1): examples/parallel/spiral.c
$(PARALLEL:%=$(BUILD)/parallel/%_$(1)): $(BUILD)/parallel/library_$(1).o $(BUILD)/mptrain_cpu.o
	@echo "  LINK  $$@"
	$$(Q)mpicc.$(1) $$(COMPILE_AS) $$(TEST_CFLAGS) $$(DEPS) -o $$@ $$(filter %.c %.o,$$^) $$(LDLIBS)
$(BUILD)/parallel/measured_$(1).o: $(BUILD)/parallel/library.c
	@echo "  CC    $$@"
	$$(Q)mpicc.$(1) $$(COMPILE_AS) $$(CFLAGS) $$(DEPS) -c -o $$@ $$<
$(BUILD)/parallel/bench_$(1): tools/bench/bench_parallel.c $(BUILD)/parallel/measured_$(1).o \
    $(BUILD)/mptrain_cpu.o
	@echo "  LINK  $$@"
	$$(Q)mpicc.$(1) $$(COMPILE_AS) $$(CFLAGS) $$(DEPS) -o $$@ $$(filter %.c %.o,$$^) $$(LDLIBS)
endef
$(foreach m,$(MPIS),$(eval $(call parallel_rules,$m)))

# Ranks in network namespaces, which root can make.
test-hosts: $(BUILD)/parallel/train_openmpi $(if $(BENCH),$(BUILD)/parallel/bench_openmpi)
	@BENCH='$(BENCH)' RATE='$(or $(RATE),1gbit)' sh tests/parallel/hosts.sh '$(BUILD)/parallel' \
	    '$(or $(RANKS),2)'

bench-parallel: $(BUILD)/parallel/bench_$(firstword $(MPIS))
	@$(PYTHON) tools/bench/parallel_peer.py --bench $< --mpirun mpirun.$(firstword $(MPIS)) $(ARGS)

# Builds what it runs: the processes that are killed with the library as it is.
torture torture-long:
	@QUICK='$(if $(filter torture,$@),$(QUICK))' LONG='$(filter torture-long,$@)' SHARE='$(SHARE)' WRITE='$(WRITE)' \
	    SEED='$(or $(SEED),1)' ONLY='$(ONLY)' MAKE='$(MAKE)' sh tests/torture/run.sh '$(BUILD)'

VERSION = $(shell awk '/define MPTRAIN_VERSION_(MAJOR|MINOR|PATCH) / { v = v dot $$3; dot = "." } \
    END { print v }' mptrain.h)

install:
	mkdir -p $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig
	cp mptrain.h $(wildcard $(filter-out mptrain.h,$(GENERATED))) $(DESTDIR)$(PREFIX)/include
	printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$${prefix}/include' '' 'Name: mptrain' \
	    'Description: mixed-precision neural network training in one C header' \
	    'Version: $(VERSION)' 'Cflags: -I$${includedir}' 'Libs: -lm -lpthread' \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/mptrain.pc

clean:
	rm -rf $(BUILD)

# A change of compiler or flags rebuilds.
$(BUILD)/flags: FORCE
	@mkdir -p $(BUILD)/tests/tmp $(BUILD)/bench $(BUILD)/torture $(BUILD)/web
	@printf '%s\n' '$(subst ','\'',$(COMPILE) $(CFLAGS) $(TEST_CFLAGS) $(LDFLAGS) $(LDLIBS) $(if $(EXTRA),$(CUDA_FLAGS)))' | \
	    cmp -s - $@ || \
	    printf '%s\n' '$(subst ','\'',$(COMPILE) $(CFLAGS) $(TEST_CFLAGS) $(LDFLAGS) $(LDLIBS) $(if $(EXTRA),$(CUDA_FLAGS)))' > $@

TOOLS := $(patsubst %,$(BUILD)/%,amalgamate house lint reference mutate)
$(TOOLS): $(BUILD)/%: tools/%.c tools/read_file.h tools/source_text.h
	@mkdir -p $(BUILD)
	@echo "  CC    $@"
	$(Q)$(HOSTCC) -std=c11 -O1 -Wall -Wextra -o $@ $<

$(BUILD)/mptrain.c: $(BUILD)/flags
	@printf '#define MPTRAIN_IMPLEMENTATION\n#include MPTRAIN_HEADER_FILE\n' > $@

$(BUILD)/mptrain_rest.c: $(BUILD)/flags
	@printf '#define MPTRAIN_CPU_SEPARATE\n#define MPTRAIN_IMPLEMENTATION\n#include MPTRAIN_HEADER_FILE\n' > $@

$(BUILD)/mptrain_cpu.c: $(BUILD)/flags
	@printf '#define MPTRAIN_CPU_IMPLEMENTATION\n#include MPTRAIN_HEADER_FILE\n' > $@

$(ONE) $(TWO): %.o: %.c
	@echo "  CC    $@"
	$(Q)$(COMPILE) $(CFLAGS) $(DEPS) -c -o $@ $<

$(BUILD)/mptrain_cuda.cu: $(BUILD)/amalgamate $(wildcard src/cuda/*.cu src/*/*.inl src/*/*.h)
	$(Q)$(BUILD)/amalgamate src/cuda/mptrain_cuda.cu $@

$(BUILD)/mptrain_cuda.o: $(BUILD)/mptrain_cuda.cu $(BUILD)/flags
	@echo "  NVCC  $@"
	$(Q)$(NVCC) -std=c++17 -O2 $(CUDA_FLAGS) $(INCLUDES) -c -o $@ $<

define program_rules
$(2).o: $(1) $$(BUILD)/flags
	@echo "  CC    $$@"
	$$(Q)$$(COMPILE) $(3) $$(DEPS) -c -o $$@ $$<
$(2)$$(EXE): $(2).o $(call library,$(1)) $(EXTRA)
	@echo "  LINK  $$@"
	$$(Q)$$(LINK) $(3) $$(LDFLAGS) -o $$@ $$^ $$(LDLIBS)
endef
$(foreach s,$(EXAMPLES),$(eval $(call program_rules,$(s),$(s:examples/%.c=$(BUILD)/%),$$(CFLAGS))))
$(foreach s,$(BENCHES),\
    $(eval $(call program_rules,$(s),$(s:tools/bench/%.c=$(BUILD)/bench/%),$$(CFLAGS))))
# This one counts what a step asks of the CUDA runtime. Nothing else is built with these flags.
ifneq ($(findstring MPTRAIN_CUDA,$(CPPFLAGS)),)
COUNTED := $(shell awk -F '[, ]+' '/^COUNT.[0-9]/ { print $$2 }' tools/bench/device_models.c)
$(BUILD)/bench/device_models$(EXE): private override LDFLAGS += $(COUNTED:%=-Wl,--wrap=%)
endif
# A test that holds the implementation keeps it to itself, so that what it does not reach is not
# compiled: with a sanitizer that is most of the time.
static = $(if $(filter $(1),$(SELF)),-DMPTRAIN_STATIC)
$(foreach s,$(TESTS) $(wildcard tests/tool_*.c),\
    $(eval $(call program_rules,$(s),$(s:tests/%.c=$(BUILD)/tests/%),$$(TEST_CFLAGS) $(call static,$(s)))))

# The kernels of the test that launches its own.
$(BUILD)/tests/cudasim/api_kernel$(EXE): $(BUILD)/tests/cudasim/kernel.o
$(BUILD)/tests/cudasim/kernel.o: tests/cudasim/kernel.cu $(BUILD)/flags
	@echo "  NVCC  $@"
	$(Q)$(NVCC) -std=c++17 -O2 $(CUDA_FLAGS) $(INCLUDES) -c -o $@ $<

doctor: $(BUILD)/doctor$(EXE)
	@$(RUN) $<
$(eval $(call program_rules,tools/doctor.c,$(BUILD)/doctor,$$(CFLAGS)))

# What nets and ops become as ONNX, run by onnxruntime beside the library.
test-export: $(BUILD)/export_nets$(EXE)
	@rm -rf '$(BUILD)/export' && mkdir -p '$(BUILD)/export'
	@$(RUN) $< '$(BUILD)/export'
	@$(PYTHON) tools/export_check.py '$(BUILD)/export'
$(eval $(call program_rules,tools/export_nets.c,$(BUILD)/export_nets,$$(CFLAGS)))

# A page that trains a net, in one file, and a program that has the same bits.
EMCC ?= emcc
web: $(BUILD)/web/web$(EXE)
	@command -v $(EMCC) >/dev/null 2>&1 || { echo "make web: there is no $(EMCC) on the path;" \
	    "install emscripten, or name it: EMCC=folder/emcc"; exit 2; }
	@echo "  EMCC  $(BUILD)/web/digits.html"
	$(Q)NODE_PATH="$${NODE_PATH:-/usr/share/nodejs}" $(EMCC) -std=gnu11 -O2 -msimd128 $(INCLUDES) \
	    -DMPTRAIN_NO_THREADS -DMPTRAIN_IMPLEMENTATION -include $(HEADER) -sSINGLE_FILE=1 \
	    -sMINIFY_HTML=0 -sALLOW_MEMORY_GROWTH=1 -sEXPORTED_RUNTIME_METHODS=UTF8ToString,HEAPF32 \
	    --shell-file examples/web/page.html examples/web/web.c -o $(BUILD)/web/digits.html
	@echo "$(BUILD)/web/digits.html trains a net in any browser, without a server"
$(eval $(call program_rules,examples/web/web.c,$(BUILD)/web/web,$$(CFLAGS)))

# What breaks files and processes on purpose, for POSIX systems.
$(foreach s,$(wildcard tests/torture/torture_*.c),\
    $(eval $(call program_rules,$(s),$(s:tests/torture/%.c=$(BUILD)/torture/%),$$(CFLAGS))))

$(BUILD)/tests/examples.log: $(EXAMPLE_PROGRAMS) FORCE
	@EXE='$(EXE)' sh tests/run.sh examples $@ '$(abspath $(BUILD))' '$(RUN)' $(EXAMPLES)

# What these have seen, test_gradcheck asks for each row of the op table.
$(BUILD)/tests/test_gradcheck.log: $(filter $(patsubst %,$(BUILD)/tests/%.log,api_attention api_conv \
    api_golden_ops api_losses api_norm test_misuse),$(LOGS))

$(BUILD)/tests/%.log: $(BUILD)/tests/%$(EXE) FORCE
	@MPTRAIN_TEST_TMP='$(BUILD)/tests/tmp' sh tests/run.sh one $* $@ $(RUN) $<

-include $(wildcard $(BUILD)/*.d $(BUILD)/tests/*.d $(BUILD)/tests/cudasim/*.d $(BUILD)/bench/*.d \
    $(BUILD)/torture/*.d $(BUILD)/web/*.d $(BUILD)/parallel/*.d)

FORCE:
.PHONY: all mnist examples cuda tests test test-export test-parallel test-hosts amalgamate check-header house lint reference header-test bench benches bench-peers bench-pairs bench-memory bench-compile bench-parallel bench-quality compare tables gpu-check \
    check-instructions coverage messages mutate torture torture-long web doctor install clean FORCE
.SECONDARY:
.DELETE_ON_ERROR:
