//! Drives servers as processes and measures them fairly: the implementation of `penstock bench`.
//!
//! It sees targets only from outside, as processes and sockets; it must never depend on `serve`.
//!
//! # The path of a measurement
//!
//! 1. `crates/penstock/src/cmd/bench.rs` reads arguments and calls `crates/bench/src/run.rs`, which describes the
//!    machine (`crates/bench/src/machine.rs`) and asks each scenario (`crates/bench/src/scenario.rs`) for its plan.
//! 2. `crates/bench/src/trial.rs` starts the contestants of a group and runs their trials in turn. Targets are
//!    processes with generated configurations (`crates/bench/src/target.rs`); `crates/bench/src/process.rs` ends them
//!    with all their descendants. Their files are in the run's directory (`crates/bench/src/scratch.rs`); if the run is
//!    killed, the next run removes it.
//! 3. Load processes do the work (`crates/bench/src/agent.rs`, `crates/bench/src/load.rs`): they run this program on
//!    other cores, and read the CPU time of the targets (`crates/bench/src/meter.rs`) at both ends of the window.
//! 4. During each round `crates/bench/src/disturbance.rs` looks for other load, steal time, and cores that moved or
//!    changed their speed. Disturbed rounds are repeated.
//! 5. `crates/bench/src/stats.rs` and `crates/bench/src/compare.rs` compute the verdicts; `crates/bench/src/results.rs`
//!    holds all results, and is the JSON file (read again by `crates/bench/src/results/file.rs`);
//!    `crates/bench/src/report.rs` formats them.
//!
//! # How a scenario is added
//!
//! 1. A new file in `scenario/` has a unit struct that implements [`plan::Scenario`], and a line in [`scenario::all`].
//! 2. Its `plan` returns a [`plan::Plan`] and starts nothing: groups, missing programs ([`plan::Plan::note_missing`]
//!    takes the error of [`target::Program::find`]), and notes for the reader. It plans all its groups; the most
//!    important ones have the extent [`context::Extent::Quick`]. The [`selection`] decides which groups run.
//! 3. A [`plan::Group`] is work that several [`contestant::Contestant`]s do in the same way: they are measured in turns
//!    (A B C A B C) and compared by the group's `headline` [`sample::Metric`]. `pairing` defines the compared pairs,
//!    `limits` the limits that must hold ([`limit`]), `columns` the further figures shown.
//! 4. A contestant is a name and a closure that starts it and returns a [`contestant::Running`]. It is started once for
//!    the group, runs through all rounds, and ends when dropped: [`process::Process`], [`target::prepared::Target`] and
//!    [`agent::Agent`] end their whole process group in `Drop`, also on Ctrl-C.
//! 5. `Running::trial` runs the work for a [`load::gauge::Window`] and returns a [`sample::Sample`]: units of work,
//!    seconds, CPU time of the target's process tree, latency histogram, failed units, and scenario-specific figures
//!    (in base units), which [`sample::Metric::Figure`] shows as columns. It usually calls [`agent::Agent::load`],
//!    which runs a [`load::Order`] in a process on the load's cores, meters the process trees in `metered` at both ends
//!    of the window, and returns a [`load::gauge::Tally`]; the method `sample` of the tally makes the sample. A trial
//!    without a load (a program that runs once) uses [`process::Process`] and [`meter`] directly.
//!
//! A new kind of load is a file in `load/`, a variant of [`load::Order`], and an arm of `perform` in `agent.rs`: it
//! calls [`load::gauge::Gauge`] for each unit and stops when the gauge's phase is `Over`. A blocking load calls
//! `Gauge::advance` between units; an asynchronous load spawns tasks (`spawn_local`) and returns, and `agent.rs` waits
//! for the window. Servers behind targets are also orders ([`agent::Agent::serve`]): they bind, report their addresses,
//! and run until the process ends.
//!
//! A new target program is a file in `target/` with a `prepare` function, and a variant of [`target::Program`].
//!
//! [`context::Context`] provides all resources of a contestant: the path of this program, the cores of target and load
//! (empty on one core: no pinning), free ports, and paths in a directory that is removed after the run. [`namespace`] makes
//! network namespaces that end with the run.

pub mod address;
pub mod agent;
pub mod compare;
pub mod contestant;
pub mod context;
pub mod disturbance;
mod error;
pub mod latency;
pub mod limit;
pub mod load;
pub mod machine;
pub mod meter;
pub mod namespace;
pub mod pairing;
pub mod plan;
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
pub mod version;

pub use error::Error;
