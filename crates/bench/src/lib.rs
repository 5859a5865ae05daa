//! Drives servers as processes and measures them fairly: the machinery of `penstock bench`.
//!
//! It sees targets from outside only, as processes and sockets; it must never depend on `serve`.
//!
//! # The path of a measurement
//!
//! 1. `crates/penstock/src/cmd/bench.rs` reads arguments and calls `crates/bench/src/run.rs`, which describes the machine
//!    (`crates/bench/src/machine.rs`) and asks each scenario (`crates/bench/src/scenario.rs`) for its plan.
//! 2. `crates/bench/src/trial.rs` starts the contestants of a group and lets them work in turns. Targets are processes with
//!    generated configurations (`crates/bench/src/target.rs`), ended with all they started by `crates/bench/src/process.rs`.
//!    Their files are in the run's directory (`crates/bench/src/scratch.rs`), which the next run removes if this one is killed.
//! 3. The work is done by load processes (`crates/bench/src/agent.rs`, `crates/bench/src/load.rs`): this program again, on other
//!    cores. They read the CPU time of the targets (`crates/bench/src/meter.rs`) at both ends of the window.
//! 4. Beside each round `crates/bench/src/disturbance.rs` looks for other load, steal time, and cores that moved or changed
//!    their speed. Such rounds are repeated.
//! 5. `crates/bench/src/stats.rs` and `crates/bench/src/compare.rs` judge; `crates/bench/src/results.rs` holds everything, and is
//!    the JSON file (read again by `crates/bench/src/results/file.rs`); `crates/bench/src/report.rs` tells it.
//!
//! # How a scenario is added
//!
//! 1. A file of its own in `scenario/` has a unit struct that implements [`scenario::Scenario`], and a line in [`scenario::all`].
//! 2. Its `plan` returns a [`scenario::Plan`] and starts nothing: groups, programs that are missing
//!    ([`scenario::Plan::note_missing`] takes the error of [`target::Program::find`]), notes for the reader. It plans
//!    all of its groups, and those that matter most say that they belong to [`context::Extent::Quick`]; which of them
//!    are run is up to the [`selection`].
//! 3. A [`scenario::Group`] is work that several [`scenario::Contestant`]s do alike: they are measured in turns
//!    (A B C A B C) and compared by the group's `headline` [`sample::Metric`]. `pairing` says who is compared with
//!    whom, `bars` which limits must hold ([`scenario::bar`]), `columns` what else is shown.
//! 4. A contestant is a name and a closure that starts it and returns something that is [`scenario::Running`]. It is
//!    started once for the group, stays up through all rounds, and ends by being dropped: [`process::Process`],
//!    [`target::Target`] and [`agent::Agent`] end their whole process group in `Drop`, also on Ctrl-C.
//! 5. `Running::trial` does the work for a [`load::Window`] and returns a [`sample::Sample`]: units of work, seconds,
//!    CPU time of the target's tree, latency histogram, failed units, and figures of its own (in base units) which
//!    become columns through [`sample::Metric::Figure`]. How it gets them is its own business. The usual way is
//!    [`agent::Agent::load`]: it runs an [`load::Order`] in a process on the load's cores, meters the process trees
//!    in `metered` at both ends of the window, and gives a [`load::Tally`], whose `sample` makes the sample.
//!    A trial that is not a load (a program that runs once) uses [`process::Process`] and [`meter`] itself.
//!
//! A new kind of load is a file in `load/`, a variant of [`load::Order`], and an arm of `perform` in `agent.rs`: it
//! calls [`load::Gauge`] for each unit and stops when the gauge's phase is `Over`. A blocking load calls
//! `Gauge::advance` between units; a load in tasks spawns them (`spawn_local`) and returns, the rest is done for it.
//! Servers behind targets are orders too ([`agent::Agent::serve`]): they bind, say where, and run for ever.
//!
//! A new target program is a file in `target/` with a `prepare` function, and a variant of [`target::Program`].
//!
//! Everything a contestant needs comes from [`context::Context`]: our own program, the cores of target and load (empty
//! on one core: no pinning), free ports and paths in a directory that goes away.

pub mod address;
pub mod agent;
pub mod compare;
pub mod context;
pub mod disturbance;
mod error;
pub mod latency;
pub mod load;
pub mod machine;
pub mod meter;
pub mod process;
pub mod report;
pub mod results;
pub mod run;
pub mod sample;
pub mod scenario;
mod scratch;
pub mod selection;
pub mod stats;
pub mod target;
pub mod trial;

pub use error::Error;
