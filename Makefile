# The way in. Everything is built by CMake in build/; these are the commands that people type.
#
#   make            the command build/lockstep and the library
#   make demo       train a small model on the King James Bible, report, sample from it
#   make check      build and run all tests
#   make nightly    the complete matrices, every card, the suite again under sanitizers and with clang, builds without faults and without
#                   oneDNN, a minute of each fuzz target. It takes hours; STAGES="threads fuzz" picks some
#   make labs       run every lab, write the verdicts to docs/claims.md
#   make gpu_bundle pack a folder that tests the CUDA module on a machine with a GPU
#   make format     format src/ and include/ by .clang-format
#   make install    PREFIX=/usr/local by default
#   make SANITIZE=address,undefined check     (or SANITIZE=thread; CC=clang works as well; TESTS=regex picks some)
#   make V=1        shows every command and its output instead of one line per stage

PREFIX   ?= /usr/local
SANITIZE ?=
CC       ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
JOBS     ?= $(shell nproc)
BUILD    ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))$(if $(filter-out gcc cc,$(CC)),-$(notdir $(CC)))
comma    := ,

.PHONY: all deps configure demo check nightly install fuzz docs format labs gpu_bundle clean

# Each stage prints one line, warnings in full, and its whole output if it fails: see tools/stage.sh.
export V
STAGE := tools/stage.sh

all: configure
	@$(STAGE) build $(BUILD)/build.log cmake --build $(BUILD) -j$(JOBS)

deps:
	@tools/deps.sh build
	@case "$(notdir $(CC))" in clang*) tools/deps.sh clang;; esac

configure: deps
	@mkdir -p $(BUILD)
	@$(STAGE) configure $(BUILD)/configure.log cmake -G Ninja -S . -B $(BUILD) -DCMAKE_C_COMPILER=$(CC) -DSANITIZE=$(SANITIZE) \
	  -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_FLAGS)

demo: configure
	@tools/deps.sh demo
	@$(STAGE) build $(BUILD)/build.log cmake --build $(BUILD) -j$(JOBS) --target lockstep
	@tools/demo.sh $(BUILD)/lockstep

check: configure
	@tools/deps.sh format
	@tools/layers.sh
	@tools/format.sh check
	@$(STAGE) build $(BUILD)/build.log cmake --build $(BUILD) -j$(JOBS)
	@cd $(BUILD) && ctest --output-on-failure -j$$((2 * $(JOBS))) $(if $(TESTS),-R '$(TESTS)')

nightly:
	@MAKE='$(MAKE)' CMAKE_FLAGS='$(CMAKE_FLAGS)' tools/nightly.sh $(STAGES)

fuzz: deps
	@tools/deps.sh fuzz
	@mkdir -p build-fuzz
	@$(STAGE) configure build-fuzz/configure.log cmake -G Ninja -S . -B build-fuzz -DCMAKE_C_COMPILER=clang -DFUZZ=ON
	@$(STAGE) build build-fuzz/build.log cmake --build build-fuzz -j$(JOBS) --target fuzzers
	tools/fuzz.sh build-fuzz 60

gpu_bundle:
	@tools/gpu_bundle.sh

docs: all
	$(BUILD)/lockstep help options --markdown >docs/options.md
	$(BUILD)/lockstep help --markdown >docs/command.md

format:
	@tools/deps.sh format
	tools/format.sh fix

labs: all
	tools/labs.sh $(BUILD)

SHARE := $(DESTDIR)$(PREFIX)/share
install: all
	cmake --install $(BUILD)
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/vendor-completions $(SHARE)/fish/vendor_completions.d
	$(BUILD)/lockstep completion bash >$(SHARE)/bash-completion/completions/lockstep
	$(BUILD)/lockstep completion zsh >$(SHARE)/zsh/vendor-completions/_lockstep
	$(BUILD)/lockstep completion fish >$(SHARE)/fish/vendor_completions.d/lockstep.fish

clean:
	rm -rf build build-*
