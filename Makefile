# GNU make. `make` alone lists the targets.

CARGO ?= cargo
# Passed on to `cargo test` or the script, for example: make test ARGS='--test metrics'.
# build, man, demo, lint, wheel, test-wheel, dist and metal-check take none.
ARGS ?=
# Cargo features to add to the default ones, for example: make test FEATURES=mpi
FEATURES ?=
WITH = $(if $(FEATURES),--features $(FEATURES))

.DEFAULT_GOAL := help
.PHONY: help build man demo test test-long test-mpi-long test-sacrebleu test-interop test-report fuzz bench bench-train bench-quality bench-decode bench-eval lint deny wheel test-wheel dist book sanitize cuda gpu-test gpu-bench metal-check

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --target-dir: scripts expect the binary there, even if the user's cargo builds elsewhere.
build: ## Build target/release/mt
	$(CARGO) build --release --locked --target-dir target $(WITH)

man: build ## Write the manual pages into target/man
	target/release/mt man target/man

demo: ## Build mt, train on data/quickstart, score and translate its test set
	@scripts/demo.sh announce
	@$(MAKE) --no-print-directory build
	@scripts/demo.sh

# In the release profile: without it training is slow, and the build is shared with the binary's.
# Tests with real corpora read them from $MT_TEST_DATA, and are skipped if that is unset.
test: ## Run all tests
	$(CARGO) test --release --locked $(WITH) $(ARGS)

# Tests that take too long for `make test`; $MT_TEST_DATA is as there.
test-long: ## Run the tests that take long: two hundred kills, fused training against f64, races of kernels
	$(CARGO) test --release --locked $(WITH) $(ARGS) -- --ignored --nocapture

test-mpi-long: ## Run the long tests of training on several ranks (Debian: libopenmpi-dev openmpi-bin libclang-dev)
	$(CARGO) test --release --locked --features mpi --test mpi $(ARGS) -- --ignored --nocapture --test-threads 1

test-sacrebleu: build ## Compare metrics and event files with the real sacrebleu and TensorBoard (from PyPI)
	scripts/sacrebleu-python.sh tests/tensorboard/read.py target/release/mt
	scripts/sacrebleu-python.sh tests/sacrebleu/compare.py target/release/mt $(ARGS)

# Three of them read text from $MT_TEST_DATA, and are skipped if that is unset.
test-interop: build ## Compare tokenizers and models, in and out, with SentencePiece, tokenizers, CTranslate2, Marian, transformers (from PyPI)
	scripts/interop-python.sh tests/interop/export.py target/release/mt $(ARGS)
	set -e; for file in $(filter-out %/export.py,$(wildcard tests/interop/*.py)); do scripts/interop-python.sh $$file target/release/mt; done

test-report: build ## Test every control of report.html in headless Chromium (Debian: apt-get install chromium)
	tests/browser/check.py target/release/mt $(ARGS)

bench: build ## Measure training speed in target tokens per second
	scripts/bench.sh $(ARGS)

bench-train: ## Time training beside PyTorch and Marian on the processor
	python3 benches/bench_train.py $(ARGS)

bench-quality: build ## Show BLEU by minutes of training, of mt and of PyTorch
	python3 benches/bench_quality.py $(ARGS)

bench-decode: ## Time translation beside CTranslate2 and Marian on the processor
	python3 benches/bench_decode.py $(ARGS)

bench-eval: build ## Time scoring beside sacrebleu, on the text in MT_TEST_DATA
	scripts/sacrebleu-python.sh benches/bench_eval.py $(ARGS)

# The fuzz targets are a crate of their own, which nothing else compiles.
lint: ## Check formatting and lints, and that the fuzz targets compile
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) clippy --release --all-targets --locked $(WITH) -- -D warnings
	$(CARGO) clippy --release --locked --no-default-features -- -D warnings
	$(CARGO) clippy --release --locked --manifest-path fuzz/Cargo.toml --target-dir target -- -D warnings

deny: ## Check licences, duplicates, sources and advisories of the dependencies (cargo-deny; the last needs the network)
	$(CARGO) deny check $(ARGS)

sanitize: ## Run the tests of unsafe code under the address sanitizer, or ARGS=thread: the thread sanitizer (nightly compiler)
	scripts/sanitize.sh $(ARGS)

wheel: ## Make target/wheels: a Python wheel with the binary, for pip (its tools are from PyPI)
	scripts/wheel.sh

test-wheel: ## Install the wheel of `make wheel` elsewhere; train and translate with it
	scripts/test-wheel.sh

# The wheel takes long, so what is missing is told before it.
dist: ## Make target/dist: an archive with the binary, the wheel, their SBOM and checksums (cargo-about, cargo-cyclonedx)
	scripts/dist.sh check
	@$(MAKE) --no-print-directory wheel
	scripts/dist.sh

book: ## Make target/book/docs/guide/index.html: the guide and the reference pages (mdbook)
	scripts/book.sh

cuda: ## Build target/cuda/release/mt with CUDA kernels; needs no GPU
	scripts/cuda-build.sh $(ARGS)

fuzz: ## Feed arbitrary input to what reads configurations, text, data sets, tokenizers and models, ten minutes each (nightly compiler, cargo-fuzz)
	scripts/fuzz.sh $(ARGS)

gpu-test: ## Build with CUDA and run the tests for a GPU
	scripts/gpu-test.sh $(ARGS)

# Builds nothing: it also runs on a machine with Python and torch but no Rust, with a binary built elsewhere
# (ARGS='--binary FILE').
gpu-bench: ## Time training and decoding beside PyTorch on a GPU
	scripts/gpu-bench.sh $(ARGS)

metal-check: ## Type-check with Candle's Metal backend
	scripts/metal-check.sh
