//! The commands: each parses its arguments, calls one function, prints.

pub mod bench;
pub mod bench_ssh;
pub mod check;
pub mod copy;
pub mod ctl;
pub mod demo;
pub mod documents;
pub mod host;
pub mod known_hosts;
pub mod lab;
pub mod run;
pub mod serve;
pub mod ssh;
pub mod tls_grade;
pub mod tunnel;
