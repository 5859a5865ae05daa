# Every target is one line: what it really does is in setup/, cargo, or bench/.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/penstock
export CARGO_TARGET_DIR ?= $(CACHE)/target
# rustup puts cargo here; a shell that was open before the installation does not know that yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help setup demo test check lint bench build deb static clean
help:  ## Say what the targets do
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' Makefile
setup:  ## Install what building and testing need (Debian packages, Python environments); safe to repeat
	@setup/test.sh
demo:  ## Start a front door with four backends and print what to try; ARGS="--kill-one" takes them down in turn
# Ctrl-C is how it ends: the shell waits for that instead of dying, and make has no failure to report.
	@trap : INT; setup/build.sh && cargo run --locked --package penstock -- demo $(ARGS)
test: setup check  ## Check everything and run every test, also those with real clients and servers
# Most tests wait for a time limit or another process: twice as many as cores at once.
	@cargo build --locked --release --package penstock --package pam && RUST_TEST_THREADS=$$(($$(nproc) * 2)) cargo test --locked --workspace --no-fail-fast && packaging/test.sh && packaging/image_test.sh
check: lint  ## Lint, build the documentation, and check scripts and the service file
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --workspace --no-deps && setup/check.sh
lint:  ## Check the format and run clippy
	@cargo fmt --all -- --check && cargo clippy --locked --workspace --all-targets -- -D warnings
bench: build  ## Measure on this machine and print the figures
	@setup/test.sh && PENSTOCK="$(CARGO_TARGET_DIR)/release/penstock" bench/run.sh
build:  ## Build the release binary
	@setup/build.sh && cargo build --locked --release --package penstock && ls -l "$(CARGO_TARGET_DIR)/release/penstock"
deb: setup  ## Build the Debian packages
	@setup/deb.sh
static: setup  ## Build the program without shared libraries, in an archive and in an image for containers
	@setup/static.sh
clean:  ## Remove everything that was built, and the Python environments
	@cargo clean --quiet && rm -rf "$(CACHE)"/venv-*
